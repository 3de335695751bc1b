//! Encoder and fast decoder of a format, derived from its description.

mod cells;
mod choice;
mod evaluate;
mod exact;
mod fit;
mod group;
mod joint;
mod layout;
mod levels;
mod points;
mod search;

use gristmill_uop::dtype::Scalar;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::op::Op;
use half::{bf16, f16};
use layout::Layout;
use search::Search;

/// Encodes numbers as blocks of a format, and decodes blocks.
///
/// A block's scales and codes are searched for a small squared error, never worse than rounding to
/// the nearest with the extremes at the ends of the levels. Numbers that were decoded from a block
/// give a block that decodes to the same numbers, within a thousandth of its scales. A NaN is
/// encoded as 0; an infinite or too large number as the largest that the format has.
///
/// ```
/// use gristmill_encodings::{Quantiser, by_name};
/// let encoding = by_name("q8_0").unwrap();
/// let quantiser = Quantiser::new(encoding).unwrap();
/// let weights: Vec<f32> = (0..32).map(|i| i as f32 - 16.0).collect();
/// let (mut block, mut decoded) = (vec![0; encoding.bytes], vec![0.0; 32]);
/// quantiser.encode(&weights, &mut block);
/// quantiser.decode(&block, &mut decoded);
/// assert!(weights.iter().zip(&decoded).all(|(w, d)| (w - d).abs() < 0.1));
/// ```
pub struct Quantiser {
    encoding: EncodingRef,
    kind: Kind,
}

enum Kind {
    /// A float of this type.
    Plain(Scalar),
    Blocks(Box<Layout>),
}

impl Quantiser {
    /// Derives the quantiser of a format; `None` if its expression is of a form that has no
    /// search.
    pub fn new(encoding: EncodingRef) -> Option<Quantiser> {
        let kind = match plain(encoding) {
            Some(scalar) => Kind::Plain(scalar),
            None => Kind::Blocks(Box::new(Layout::new(encoding)?)),
        };
        Some(Quantiser { encoding, kind })
    }
    /// The format that blocks are encoded in.
    pub fn encoding(&self) -> EncodingRef {
        self.encoding
    }
    /// Encodes whole blocks of numbers. Panics unless `out` has the bytes of as many blocks as
    /// `values` has.
    pub fn encode(&self, values: &[f32], out: &mut [u8]) {
        self.encode_row(values, None, out);
    }
    /// Encodes whole blocks of numbers; the squared error of each counts `weights` times. Weights
    /// of a block are relative to each other; negative ones and NaN count as 0. Panics unless there
    /// is a weight for each value, and `out` has the bytes of as many blocks as `values` has.
    pub fn encode_weighted(&self, values: &[f32], weights: &[f32], out: &mut [u8]) {
        assert_eq!(values.len(), weights.len(), "a weight for each value");
        self.encode_row(values, Some(weights), out);
    }
    fn encode_row(&self, values: &[f32], weights: Option<&[f32]>, out: &mut [u8]) {
        self.check(values.len(), out.len());
        let elements = self.encoding.elements;
        let blocks = values.chunks_exact(elements);
        let pairs = blocks.zip(out.chunks_exact_mut(self.encoding.bytes));
        match &self.kind {
            Kind::Plain(scalar) => pairs.for_each(|(x, out)| put(*scalar, x[0], out)),
            Kind::Blocks(layout) => {
                let mut search = Search::new(layout);
                for (number, (x, out)) in pairs.enumerate() {
                    out.fill(0);
                    let of_block = number * elements..(number + 1) * elements;
                    search.encode(x, weights.map(|weights| &weights[of_block]), out);
                }
            }
        }
    }
    /// Decodes whole blocks, bit for bit as the format's expression. Panics unless `out` has the
    /// elements of as many blocks as `bytes` has.
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        self.check(out.len(), bytes.len());
        let blocks = bytes.chunks_exact(self.encoding.bytes);
        let pairs = blocks.zip(out.chunks_exact_mut(self.encoding.elements));
        match &self.kind {
            Kind::Plain(scalar) => pairs.for_each(|(block, out)| out[0] = get(*scalar, block)),
            Kind::Blocks(layout) => pairs.for_each(|(block, out)| layout.decode(block, out)),
        }
    }
    fn check(&self, elements: usize, bytes: usize) {
        let expected = self.encoding.row_bytes(elements);
        assert_eq!(
            expected,
            Some(bytes),
            "{elements} elements of {}",
            self.encoding.name
        );
    }
}

/// The type of an encoding whose blocks are single floats.
fn plain(encoding: EncodingRef) -> Option<Scalar> {
    let element = evaluate::Element::new(encoding, 0);
    let loaded = match element.graph[element.root].op {
        Op::Cast => element.graph[element.root].src[0],
        _ => element.root,
    };
    let (_, scalar) = element.load_at(loaded).filter(|_| encoding.elements == 1)?;
    matches!(scalar, Scalar::F32 | Scalar::F16 | Scalar::BF16).then_some(scalar)
}

/// Writes a number as the float type, little-endian; too large ones as its largest.
fn put(scalar: Scalar, x: f32, out: &mut [u8]) {
    let x = if x.is_nan() { 0.0 } else { x };
    match scalar {
        Scalar::F16 => {
            let largest = f16::MAX.to_f32();
            out.copy_from_slice(&f16::from_f32(x.clamp(-largest, largest)).to_le_bytes());
        }
        Scalar::BF16 => {
            let largest = bf16::MAX.to_f32();
            out.copy_from_slice(&bf16::from_f32(x.clamp(-largest, largest)).to_le_bytes());
        }
        _ => out.copy_from_slice(&x.clamp(f32::MIN, f32::MAX).to_le_bytes()),
    }
}

/// Reads a little-endian number of the float type.
fn get(scalar: Scalar, bytes: &[u8]) -> f32 {
    match scalar {
        Scalar::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        Scalar::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        _ => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    }
}
