//! Into the host's memory. A thread reads a piece that its core's cache holds, and packs it from there: of the file's bytes nothing goes to
//! memory but what is packed.

use super::piece::{How, Weight};
use crate::error::Error;
use crate::gguf::Gguf;
use gristmill_backend::parallel::{cores, each};
use gristmill_runtime::{Buffer, Device, Memory};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes read at a time: a core's second cache. Up to 2 MiB take the same time; half of it takes a third more, since every piece is a step.
const PIECE: u64 = 512 << 10;
/// Pieces after which is looked how much memory is free.
const LOOK: usize = 32;
/// Memory that stays free while cached parts of the file are kept.
const SPARE: u64 = 256 << 20;

/// Loads all of them, which are in the order of the files. `done` is told the bytes of each piece, on this thread.
pub fn load(
    how: &How,
    file: &Gguf,
    device: &Arc<dyn Device>,
    weights: &[Weight],
    done: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let piece = how.piece.unwrap_or(PIECE);
    let pieces: Vec<(&Weight, Range<u64>)> =
        weights.iter().flat_map(|w| w.pieces(piece).into_iter().map(move |p| (w, p))).collect();
    let length = |range: &Range<u64>| range.end - range.start;
    let most = pieces.iter().map(|p| length(&p.1)).max().unwrap_or(0);
    let left = AtomicU64::new(pieces.iter().map(|p| length(&p.1)).sum());
    // What is read and not yet packed, one buffer a thread.
    let buffers: Mutex<Vec<Buffer>> = Mutex::default();
    let pool = || buffers.lock().unwrap_or_else(PoisonError::into_inner);
    let work = |number: usize| -> Result<u64, Error> {
        if number.is_multiple_of(LOOK) && (how.free)().is_some_and(|free| free < left.load(Ordering::Relaxed) + SPARE) {
            // What was read goes first. The system would look for what it can spare itself, and finds what is read next as well.
            release(file, &pieces[number.saturating_sub(2 * LOOK)..number.saturating_sub(LOOK)]);
        }
        let (weight, range) = &pieces[number];
        let piece = weight.piece(range.clone())?;
        let bytes = length(range);
        match &weight.packed {
            None => read(file, device, weight, range, &piece.to)?,
            Some((packer, _)) => {
                let buffer = pool().pop();
                let buffer = buffer.map_or_else(|| device.alloc(most as usize, Memory::Scratch), Ok)?;
                let from = buffer.slice(0, bytes as usize)?;
                read(file, device, weight, range, &from)?;
                packer.pack_alone(&from, &piece.to, piece.rows)?;
                pool().push(buffer);
            }
        }
        left.fetch_sub(bytes, Ordering::Relaxed);
        Ok(bytes)
    };
    each(pieces.len(), cores(), work, |_, bytes| {
        done(bytes);
        Ok(())
    })
}

fn read(file: &Gguf, device: &Arc<dyn Device>, weight: &Weight, range: &Range<u64>, to: &Buffer) -> Result<(), Error> {
    let mut piece = device.stage(to, 0, to.len())?;
    file.read_range(weight.info, range.start, piece.bytes())?;
    Ok(piece.send()?)
}

/// Lets the system forget the parts of the file that these pieces are of.
fn release(file: &Gguf, pieces: &[(&Weight, Range<u64>)]) {
    for of_one in pieces.chunk_by(|a, b| std::ptr::eq(a.0, b.0)) {
        let ((weight, first), (_, last)) = (&of_one[0], &of_one[of_one.len() - 1]);
        let start = weight.info.offset;
        file.release(weight.info.shard, start + first.start..start + last.end);
    }
}
