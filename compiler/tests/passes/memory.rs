//! Contents of slots before a run, and reading of results.

use gristmill_uop::fold::Value;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use half::{bf16, f16};
use std::collections::BTreeMap;

/// splitmix64.
pub struct Random(u64);

impl Random {
    pub fn from_name(name: &str) -> Random {
        Random(name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        }))
    }
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: i64) -> i64 {
        (self.next() % n as u64) as i64
    }
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Bytes of `len` elements: floats in −1..1, integers in `within` or below a default bound.
    pub fn elements(&mut self, scalar: Scalar, len: usize, within: Option<(i64, i64)>) -> Vec<u8> {
        let mut out = vec![0; len * scalar.bytes()];
        for i in 0..len {
            let v = match (within, scalar) {
                (Some((lo, hi)), _) => Value::Int(lo + self.below(hi - lo)),
                (None, s) if s.is_float() => Value::Float(2.0 * self.unit() - 1.0),
                (None, Scalar::I8) => Value::Int(self.below(255) - 127),
                (None, Scalar::U8 | Scalar::U16) => Value::Int(self.below(256)),
                (None, Scalar::U32) => Value::Int((self.next() & 0x7f7f_7f7f) as i64),
                (None, Scalar::Bool) => Value::Int(self.below(2)),
                _ => Value::Int(self.below(100)),
            };
            let v = if scalar.is_float() {
                Value::Float(v.float())
            } else {
                v
            };
            put(&mut out, i * scalar.bytes(), scalar, v.stored_as(scalar));
        }
        out
    }
    /// Random bytes of packed blocks. Every float among them, of any width, has a moderate
    /// magnitude.
    pub fn blocks(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| 0x20 + self.below(0x1c) as u8).collect()
    }
}

/// Writes a value at a byte offset.
pub fn put(bytes: &mut [u8], at: usize, scalar: Scalar, v: Value) {
    let mut set = |b: &[u8]| bytes[at..at + b.len()].copy_from_slice(b);
    match scalar {
        Scalar::F64 => set(&v.float().to_le_bytes()),
        Scalar::F32 => set(&(v.float() as f32).to_le_bytes()),
        Scalar::F16 => set(&f16::from_f64(v.float()).to_le_bytes()),
        Scalar::BF16 => set(&bf16::from_f64(v.float()).to_le_bytes()),
        _ => set(&v.int().to_le_bytes()[..scalar.bytes()]),
    }
}

/// Reads the value at a byte offset; an i64 must be below 2^53.
pub fn get(bytes: &[u8], at: usize, scalar: Scalar) -> f64 {
    let mut wide = [0; 8];
    wide[..scalar.bytes()].copy_from_slice(&bytes[at..at + scalar.bytes()]);
    let raw = i64::from_le_bytes(wide);
    match scalar {
        Scalar::F64 => f64::from_bits(raw as u64),
        Scalar::F32 => f32::from_bits(raw as u32).into(),
        Scalar::F16 => f16::from_bits(raw as u16).to_f64(),
        Scalar::BF16 => bf16::from_bits(raw as u16).to_f64(),
        Scalar::I8 => f64::from(raw as i8),
        Scalar::I16 => f64::from(raw as i16),
        Scalar::I32 => f64::from(raw as i32),
        _ => raw as f64,
    }
}

/// Flat positions of a tensor of dims `dims` in a buffer with the strides of dims `most`.
pub fn places(dims: &[usize], most: &[usize]) -> Vec<usize> {
    let mut out = vec![0];
    for (&n, &m) in dims.iter().zip(most) {
        out = out
            .iter()
            .flat_map(|&p| (0..n).map(move |i| p * m + i))
            .collect();
    }
    out
}

/// Bytes of every slot that is read.
pub type Slots = BTreeMap<u32, Vec<u8>>;

pub type Vars = Vec<(String, i64)>;

/// The slot of a parameter.
pub fn slot(g: &Graph, id: Id) -> Option<u32> {
    match g[id].arg {
        Arg::Param(slot) | Arg::Packed(slot, _) if g[id].op == Op::Param => Some(slot),
        _ => None,
    }
}

/// Type and size that a slot must have before a run.
pub struct Wanted {
    pub scalar: Scalar,
    pub packed: bool,
    pub bytes: usize,
}
