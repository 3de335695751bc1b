//! Into a device's own memory: all cores read a piece, the device packs it while they read the next.

use super::piece::{How, Weight};
use crate::error::Error;
use crate::gguf::{Gguf, TensorInfo};
use gristmill_backend::parallel::{cores, each};
use gristmill_runtime::{Buffer, Device, Memory, Replay};
use std::sync::Arc;

/// Bytes packed at a time.
const PIECE: u64 = 32 << 20;
/// Bytes read by one thread at a time: small enough for progress, large enough for the disk.
const READ: u64 = 4 << 20;
/// Most threads that read.
const READERS: usize = 8;

/// Loads all of them, which are in the order of the files. `done` is told the bytes of each piece.
pub fn load(
    how: &How,
    file: &Gguf,
    device: &Arc<dyn Device>,
    weights: &[Weight],
    done: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let mut staged = [Staged::default(), Staged::default()];
    let mut turn = 0;
    // A kernel that packs is given a piece as it is in the file and as it comes to lie, whose lengths are alike: a layout has room for a little more than the file.
    let given = device.target().machine.largest_binding as u64 / 2;
    for weight in weights {
        for range in weight.pieces(how.piece.unwrap_or(PIECE).min(given)) {
            let bytes = range.end - range.start;
            let piece = weight.piece(range)?;
            match &weight.packed {
                None => read(file, device, weight.info, piece.file.start, &piece.to)?,
                Some((packer, _)) => {
                    turn = (turn + 1) % staged.len();
                    let from = staged[turn].free(device, bytes as usize)?;
                    read(file, device, weight.info, piece.file.start, &from)?;
                    staged[turn].packs = Some(packer.start(&from, &piece.to, piece.rows)?);
                }
            }
            done(bytes);
        }
    }
    staged.iter_mut().try_for_each(Staged::wait)
}

/// The device's memory for a piece as it is in the file, and what still packs from it.
#[derive(Default)]
struct Staged {
    buffer: Option<Buffer>,
    packs: Option<Box<dyn Replay>>,
}

impl Staged {
    /// Waits until nothing packs from it.
    fn wait(&mut self) -> Result<(), Error> {
        Ok(self.packs.take().map_or(Ok(()), |mut step| step.wait())?)
    }
    /// So many bytes of it, from which nothing packs.
    fn free(&mut self, device: &Arc<dyn Device>, bytes: usize) -> Result<Buffer, Error> {
        self.wait()?;
        let buffer = match self.buffer.take().filter(|b| b.len() >= bytes) {
            Some(buffer) => buffer,
            None => device.alloc(bytes.max(PIECE as usize), Memory::Scratch)?,
        };
        Ok(self.buffer.insert(buffer).slice(0, bytes)?)
    }
}

/// Bytes `at..` of a tensor into a buffer, with all cores.
fn read(file: &Gguf, device: &Arc<dyn Device>, info: &TensorInfo, at: u64, to: &Buffer) -> Result<(), Error> {
    let total = to.len() as u64;
    let part = |number: usize| -> Result<(), Error> {
        let from = number as u64 * READ;
        let n = READ.min(total - from) as usize;
        let mut piece = device.stage(to, from as usize, n)?;
        file.read_range(info, at + from, piece.bytes())?;
        Ok(piece.send()?)
    };
    each(total.div_ceil(READ) as usize, cores().min(READERS), part, |_, ()| Ok(()))
}
