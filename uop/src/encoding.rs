//! What a quantisation format is: plain data and one expression.
//!
//! An [`Encoding`] describes one block: how many elements it holds, how many bytes they take, and the value of element
//! `k` as an expression over those bytes. Nothing else about a format is written by hand; the exact dequantisation,
//! the integer dot product, the packed layout and the vector code of every device follow from it.

/// A quantisation format. The table of formats is the crate `encodings`; a test may declare its own.
pub struct Encoding {
    /// Lower-case name, unique: `q4_0`.
    pub name: &'static str,
    /// Elements in one block.
    pub elements: usize,
    /// Bytes in one block.
    pub bytes: usize,
}

/// A format, compared by name.
pub type EncodingRef = &'static Encoding;

impl Encoding {
    /// Bytes of a row of `n` elements; `None` unless `n` is a multiple of the block.
    pub fn row_bytes(&self, n: usize) -> Option<usize> {
        n.is_multiple_of(self.elements).then(|| (n / self.elements).checked_mul(self.bytes)).flatten()
    }
}

impl PartialEq for Encoding {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
impl Eq for Encoding {}
impl std::hash::Hash for Encoding {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        self.name.hash(h)
    }
}
impl std::fmt::Debug for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
