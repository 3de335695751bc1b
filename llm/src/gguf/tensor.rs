//! Description of a tensor in a file.

use gristmill_uop::encoding::EncodingRef;

/// Name, shape, encoding and position of a tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique over all shards.
    pub name: String,
    /// One to four sizes, each at least 1, the contiguous one first.
    pub dims: Vec<u64>,
    /// Encoding of the data; rows are whole blocks of it.
    pub encoding: EncodingRef,
    /// Tensor type id in the file.
    pub type_id: i32,
    /// Index of the file that holds the data.
    pub shard: usize,
    /// Offset of the data in that file, in bytes from its start.
    pub offset: u64,
    /// Size of the data in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}
