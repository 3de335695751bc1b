//! A model file whose data is generated when it is read.

use super::{Error, SynthPlan, TensorPlan, fill};
use crate::gguf::{ByteSource, Writer};
use std::io;

/// A generated file: header in memory, tensor data on request.
pub(super) struct Generated {
    header: Vec<u8>,
    /// Tensors with their offsets in the file, ascending.
    tensors: Vec<(u64, TensorPlan)>,
    size: u64,
}

impl Generated {
    pub fn new(plan: SynthPlan) -> Result<Self, Error> {
        let mut header = Vec::new();
        let offsets = Writer::new(&mut header, &plan.metadata, &plan.decls())?.offsets();
        let start = header.len() as u64;
        let tensors: Vec<_> = offsets
            .into_iter()
            .map(|o| start + o)
            .zip(plan.tensors)
            .collect();
        let size = tensors.last().map_or(start, |(offset, t)| offset + t.bytes);
        Ok(Self {
            header,
            tensors,
            size,
        })
    }

    /// Fills the overlap of `out`, at `offset` of the file, and the tensor's data, at `at`.
    fn fill_part(
        &self,
        at: u64,
        tensor: &TensorPlan,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let (from, to) = (
            at.max(offset),
            (at + tensor.bytes).min(offset + out.len() as u64),
        );
        if from >= to {
            return Ok(());
        }
        let mut out = &mut out[(from - offset) as usize..(to - offset) as usize];
        let block = tensor.encoding.bytes;
        let (mut index, inside) = (
            (from - at) / block as u64,
            ((from - at) % block as u64) as usize,
        );
        let mut partial = vec![0; block];
        if inside > 0 {
            fill(tensor, index, &mut partial)?;
            let n = out.len().min(block - inside);
            let (head, rest) = out.split_at_mut(n);
            head.copy_from_slice(&partial[inside..inside + n]);
            (out, index) = (rest, index + 1);
        }
        let (whole, tail) = out.split_at_mut(out.len() / block * block);
        fill(tensor, index, whole)?;
        if !tail.is_empty() {
            fill(tensor, index + (whole.len() / block) as u64, &mut partial)?;
            tail.copy_from_slice(&partial[..tail.len()]);
        }
        Ok(())
    }
}

impl ByteSource for Generated {
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
            .partition_point(|(at, t)| at + t.bytes <= offset);
        for (at, tensor) in self.tensors[first..].iter().take_while(|(at, _)| *at < end) {
            if *at > done {
                out[(done - offset) as usize..(at - offset) as usize].fill(0);
            }
            self.fill_part(*at, tensor, offset, out)
                .map_err(io::Error::other)?;
            done = (at + tensor.bytes).min(end);
        }
        out[(done - offset) as usize..].fill(0);
        Ok(())
    }
}
