//! Loader for devices with their own memory: all cores read a chunk while the device packs the
//! previous one (double buffer).

use super::weight_chunk::{LoadOptions, PendingWeight};
use crate::error::Error;
use crate::gguf::{Gguf, TensorInfo};
use gristmill_backend::parallel::{cores, parallel_for};
use gristmill_runtime::{Buffer, Device, Memory, Replay};
use std::sync::Arc;

/// Bytes packed at a time.
const CHUNK_BYTES: u64 = 32 << 20;
/// Bytes read by one thread at a time: small enough for progress reports, large
/// enough for disk throughput.
const READ_BYTES: u64 = 4 << 20;
/// Maximum number of reader threads.
const MAX_READERS: usize = 8;

/// Loads all weights, which are in file order. `done` is called with the bytes of each chunk.
pub fn load(
    how: &LoadOptions,
    file: &Gguf,
    device: &Arc<dyn Device>,
    weights: &[PendingWeight],
    done: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let mut staged = [Staged::default(), Staged::default()];
    let mut turn = 0;
    // A pack kernel binds a chunk in file layout and in packed layout. Half the limit of a binding
    // leaves room for the packed one to be larger.
    let given = device.target().machine.largest_binding as u64 / 2;
    for weight in weights {
        for range in weight.chunks(how.chunk_bytes.unwrap_or(CHUNK_BYTES).min(given)) {
            let bytes = range.end - range.start;
            let piece = weight.chunk(range)?;
            match &weight.packed {
                None => read(file, device, weight.info, piece.file.start, &piece.to)?,
                Some((packer, _)) => {
                    turn = (turn + 1) % staged.len();
                    let from = staged[turn].wait_for_buffer(device, bytes as usize)?;
                    read(file, device, weight.info, piece.file.start, &from)?;
                    staged[turn].packs = Some(packer.start(&from, &piece.to, piece.rows)?);
                }
            }
            done(bytes);
        }
    }
    staged.iter_mut().try_for_each(Staged::wait)
}

/// Device buffer for a chunk in file layout, and the pack kernel that still reads it.
#[derive(Default)]
struct Staged {
    buffer: Option<Buffer>,
    packs: Option<Box<dyn Replay>>,
}

impl Staged {
    /// Waits until no kernel reads the buffer.
    fn wait(&mut self) -> Result<(), Error> {
        Ok(self.packs.take().map_or(Ok(()), |mut step| step.wait())?)
    }
    /// Returns `bytes` bytes of the buffer after no kernel reads it.
    fn wait_for_buffer(&mut self, device: &Arc<dyn Device>, bytes: usize) -> Result<Buffer, Error> {
        self.wait()?;
        let buffer = match self.buffer.take().filter(|b| b.len() >= bytes) {
            Some(buffer) => buffer,
            None => device.alloc(bytes.max(CHUNK_BYTES as usize), Memory::Scratch)?,
        };
        Ok(self.buffer.insert(buffer).slice(0, bytes)?)
    }
}

/// Reads bytes of a tensor starting at `at` into a buffer, with several threads.
fn read(
    file: &Gguf,
    device: &Arc<dyn Device>,
    info: &TensorInfo,
    at: u64,
    to: &Buffer,
) -> Result<(), Error> {
    let total = to.len() as u64;
    let part = |number: usize| -> Result<(), Error> {
        let from = number as u64 * READ_BYTES;
        let n = READ_BYTES.min(total - from) as usize;
        let mut piece = device.stage(to, from as usize, n)?;
        file.read_range(info, at + from, piece.bytes())?;
        Ok(piece.send()?)
    };
    parallel_for(
        total.div_ceil(READ_BYTES) as usize,
        cores().min(MAX_READERS),
        part,
        |_, ()| Ok(()),
    )
}
