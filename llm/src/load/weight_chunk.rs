//! Weights to be loaded, and their chunks.

use crate::error::Error;
use crate::gguf::TensorInfo;
use gristmill_runtime::Buffer;
use gristmill_tensor::packer::Packer;
use std::ops::Range;

/// Options of the loader, set by tests.
pub struct LoadOptions {
    /// Approximate bytes of a chunk; `None` for the device's default.
    pub chunk_bytes: Option<u64>,
    /// Returns the bytes of free memory, if known.
    pub free: fn() -> Option<u64>,
}

/// A weight with its buffer, before or during loading.
pub struct PendingWeight<'a> {
    pub info: &'a TensorInfo,
    pub buffer: Buffer,
    /// Packer and rows per packed group; `None` if the layout is that of the file.
    pub packed: Option<(Packer, u64)>,
    /// Alignment in bytes of parts of a device buffer, a power of two.
    pub alignment: u64,
}

/// Bytes of the file that are packed together, with their destination.
pub struct WeightChunk {
    pub file: Range<u64>,
    pub to: Buffer,
    pub rows: usize,
}

impl PendingWeight<'_> {
    pub fn rows(&self) -> u64 {
        self.info.dims[1..].iter().product()
    }
    /// Returns the file ranges of chunks of about `about` bytes, in order. Packed weights are
    /// divided into whole groups of rows.
    pub fn chunks(&self, about: u64) -> Vec<Range<u64>> {
        let step = match &self.packed {
            None => about.max(1),
            Some((_, group)) => {
                // Enough groups of rows that the next chunk starts at an aligned
                // byte of the buffer.
                let packed = group * (self.buffer.len() as u64 / self.rows());
                let groups =
                    self.alignment >> packed.trailing_zeros().min(self.alignment.trailing_zeros());
                let group = groups * group * (self.info.bytes / self.rows());
                (about / group).max(1) * group
            }
        };
        let bytes = self.info.bytes;
        (0..bytes.div_ceil(step))
            .map(|i| i * step..bytes.min((i + 1) * step))
            .collect()
    }
    /// Returns the destination and the rows of a chunk.
    pub fn chunk(&self, file: Range<u64>) -> Result<WeightChunk, Error> {
        let (len, whole) = (self.buffer.len() as u64, self.info.bytes);
        if self.packed.is_none() {
            let to = self
                .buffer
                .slice(file.start as usize, (file.end - file.start) as usize)?;
            return Ok(WeightChunk { file, to, rows: 0 });
        }
        let (row, packed) = (whole / self.rows(), len / self.rows());
        let (first, rows) = (file.start / row, (file.end - file.start) / row);
        let to = self
            .buffer
            .slice((first * packed) as usize, (rows * packed) as usize)?;
        Ok(WeightChunk {
            file,
            to,
            rows: rows as usize,
        })
    }
}
