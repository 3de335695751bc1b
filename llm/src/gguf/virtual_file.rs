//! A model file with data that is made when it is read.

use super::error::Result;
use super::metadata::Metadata;
use super::source::ByteSource;
use super::write::{TensorDecl, Writer};
use std::io;

/// Data of a tensor that is made on request.
pub trait TensorData: Send + Sync {
    /// Returns the declaration of the tensor.
    fn declaration(&self) -> TensorDecl<'_>;
    /// Returns the size of the data in bytes.
    fn bytes(&self) -> u64;
    /// Fills whole blocks of the tensor's encoding, from a block on.
    ///
    /// # Errors
    /// When the data cannot be made.
    fn fill(&self, block: u64, out: &mut [u8]) -> io::Result<()>;
}

/// A file with its header in memory and tensors that are made on request.
pub struct VirtualFile<T> {
    header: Vec<u8>,
    /// Tensors with their offsets in the file, ascending.
    tensors: Vec<(u64, T)>,
    size: u64,
}

impl<T: TensorData> VirtualFile<T> {
    /// Encodes the header of a file with these tensors.
    ///
    /// # Errors
    /// When a declaration is one that the reader would refuse.
    pub fn new(metadata: &Metadata, tensors: Vec<T>) -> Result<Self> {
        let mut header = Vec::new();
        let declared: Vec<_> = tensors.iter().map(TensorData::declaration).collect();
        let offsets = Writer::new(&mut header, metadata, &declared)?.offsets();
        let start = header.len() as u64;
        let tensors: Vec<_> = offsets
            .into_iter()
            .map(|o| start + o)
            .zip(tensors)
            .collect();
        let size = tensors
            .last()
            .map_or(start, |(offset, t)| offset + t.bytes());
        Ok(Self {
            header,
            tensors,
            size,
        })
    }

    /// Fills the overlap of `out`, at `offset` of the file, and the tensor's data, at `at`.
    fn fill_part(&self, at: u64, tensor: &T, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (from, to) = (
            at.max(offset),
            (at + tensor.bytes()).min(offset + out.len() as u64),
        );
        if from >= to {
            return Ok(());
        }
        let mut out = &mut out[(from - offset) as usize..(to - offset) as usize];
        let block = tensor.declaration().encoding.bytes;
        let (mut index, inside) = (
            (from - at) / block as u64,
            ((from - at) % block as u64) as usize,
        );
        let mut partial = vec![0; block];
        if inside > 0 {
            tensor.fill(index, &mut partial)?;
            let n = out.len().min(block - inside);
            let (head, rest) = out.split_at_mut(n);
            head.copy_from_slice(&partial[inside..inside + n]);
            (out, index) = (rest, index + 1);
        }
        let (whole, tail) = out.split_at_mut(out.len() / block * block);
        tensor.fill(index, whole)?;
        if !tail.is_empty() {
            tensor.fill(index + (whole.len() / block) as u64, &mut partial)?;
            tail.copy_from_slice(&partial[..tail.len()]);
        }
        Ok(())
    }
}

impl<T: TensorData> ByteSource for VirtualFile<T> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset
            .checked_add(out.len() as u64)
            .filter(|&end| end <= self.size);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let header = usize::try_from(offset)
            .ok()
            .and_then(|o| self.header.get(o..))
            .unwrap_or_default();
        let n = header.len().min(out.len());
        out[..n].copy_from_slice(&header[..n]);
        // Everything before `done` is written. Padding between tensors is zero.
        let mut done = offset + n as u64;
        let first = self
            .tensors
            .partition_point(|(at, t)| at + t.bytes() <= offset);
        for (at, tensor) in self.tensors[first..].iter().take_while(|(at, _)| *at < end) {
            if *at > done {
                out[(done - offset) as usize..(at - offset) as usize].fill(0);
            }
            self.fill_part(*at, tensor, offset, out)?;
            done = (at + tensor.bytes()).min(end);
        }
        out[(done - offset) as usize..].fill(0);
        Ok(())
    }
}
