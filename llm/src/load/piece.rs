//! Weights on their way, in pieces.

use crate::error::Error;
use crate::gguf::TensorInfo;
use gristmill_runtime::Buffer;
use gristmill_tensor::jit::Packer;
use std::ops::Range;

/// What tests choose.
pub struct How {
    /// Bytes of a piece, about; what suits the device unless said.
    pub piece: Option<u64>,
    /// Bytes of memory that nothing is in.
    pub free: fn() -> Option<u64>,
}

/// A weight on its way.
pub struct Weight<'a> {
    pub info: &'a TensorInfo,
    pub buffer: Buffer,
    /// What packs it, and how many rows together, unless it stays as in the file.
    pub packed: Option<(Packer, u64)>,
    /// Bytes at whose multiples the device takes a part of a buffer, a power of two.
    pub alignment: u64,
}

/// Bytes of the file that are packed together, and where they come to lie.
pub struct Piece {
    pub file: Range<u64>,
    pub to: Buffer,
    pub rows: usize,
}

impl Weight<'_> {
    pub fn rows(&self) -> u64 {
        self.info.dims[1..].iter().product()
    }
    /// Its pieces of about so many bytes of the file, in order; of whole groups of rows where it is packed.
    pub fn pieces(&self, about: u64) -> Vec<Range<u64>> {
        let step = match &self.packed {
            None => about.max(1),
            Some((_, group)) => {
                // As many groups of rows as begin where a part of the buffer may.
                let packed = group * (self.buffer.len() as u64 / self.rows());
                let groups = self.alignment >> packed.trailing_zeros().min(self.alignment.trailing_zeros());
                let group = groups * group * (self.info.bytes / self.rows());
                (about / group).max(1) * group
            }
        };
        let bytes = self.info.bytes;
        (0..bytes.div_ceil(step)).map(|i| i * step..bytes.min((i + 1) * step)).collect()
    }
    /// What becomes of one of them.
    pub fn piece(&self, file: Range<u64>) -> Result<Piece, Error> {
        let (len, whole) = (self.buffer.len() as u64, self.info.bytes);
        if self.packed.is_none() {
            let to = self.buffer.slice(file.start as usize, (file.end - file.start) as usize)?;
            return Ok(Piece { file, to, rows: 0 });
        }
        let (row, packed) = (whole / self.rows(), len / self.rows());
        let (first, rows) = (file.start / row, (file.end - file.start) / row);
        let to = self.buffer.slice((first * packed) as usize, (rows * packed) as usize)?;
        Ok(Piece { file, to, rows: rows as usize })
    }
}
