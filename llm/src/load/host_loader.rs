//! Loader for host memory. Each thread reads a chunk that fits its core's cache and packs it from
//! there, so that only packed data is written to memory.

use super::weight_chunk::{LoadOptions, PendingWeight};
use crate::error::Error;
use crate::gguf::Gguf;
use gristmill_backend::parallel::{cores, parallel_for};
use gristmill_runtime::{Buffer, Device, Memory};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes read at a time: the size of a core's L2 cache. Up to 2 MiB take the same time; half takes
/// a third more, because every chunk is a step.
const CHUNK_BYTES: u64 = 512 << 10;
/// Number of chunks between two checks of free memory.
const CHUNKS_PER_CHECK: usize = 32;
/// Bytes of memory that must stay free while parts of the file stay in the page cache.
const RESERVED_MEMORY: u64 = 256 << 20;

/// Loads all weights, which are in file order. `done` is called on this thread with the
/// bytes of each chunk.
pub fn load(
    how: &LoadOptions,
    file: &Gguf,
    device: &Arc<dyn Device>,
    weights: &[PendingWeight],
    done: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let piece = how.chunk_bytes.unwrap_or(CHUNK_BYTES);
    let pieces: Vec<(&PendingWeight, Range<u64>)> = weights
        .iter()
        .flat_map(|w| w.chunks(piece).into_iter().map(move |p| (w, p)))
        .collect();
    let length = |range: &Range<u64>| range.end - range.start;
    let most = pieces.iter().map(|p| length(&p.1)).max().unwrap_or(0);
    let left = AtomicU64::new(pieces.iter().map(|p| length(&p.1)).sum());
    // Buffers for data read and not yet packed, one per thread.
    let buffers: Mutex<Vec<Buffer>> = Mutex::default();
    let pool = || buffers.lock().unwrap_or_else(PoisonError::into_inner);
    let work = |number: usize| -> Result<u64, Error> {
        if number.is_multiple_of(CHUNKS_PER_CHECK)
            && (how.free)()
                .is_some_and(|free| free < left.load(Ordering::Relaxed) + RESERVED_MEMORY)
        {
            // Drops chunks that were already read. The kernel's own reclaim could also drop pages
            // that were read ahead.
            release(
                file,
                &pieces[number.saturating_sub(2 * CHUNKS_PER_CHECK)
                    ..number.saturating_sub(CHUNKS_PER_CHECK)],
            );
        }
        let (weight, range) = &pieces[number];
        let piece = weight.chunk(range.clone())?;
        let bytes = length(range);
        match &weight.packed {
            None => read(file, device, weight, range, &piece.to)?,
            Some((packer, _)) => {
                let buffer = pool().pop();
                let buffer =
                    buffer.map_or_else(|| device.alloc(most as usize, Memory::Scratch), Ok)?;
                let from = buffer.slice(0, bytes as usize)?;
                read(file, device, weight, range, &from)?;
                packer.pack_alone(&from, &piece.to, piece.rows)?;
                pool().push(buffer);
            }
        }
        left.fetch_sub(bytes, Ordering::Relaxed);
        Ok(bytes)
    };
    parallel_for(pieces.len(), cores(), work, |_, bytes| {
        done(bytes);
        Ok(())
    })
}

fn read(
    file: &Gguf,
    device: &Arc<dyn Device>,
    weight: &PendingWeight,
    range: &Range<u64>,
    to: &Buffer,
) -> Result<(), Error> {
    let mut piece = device.stage(to, 0, to.len())?;
    file.read_range(weight.info, range.start, piece.bytes())?;
    Ok(piece.send()?)
}

/// Drops the file ranges of these chunks from the page cache.
fn release(file: &Gguf, pieces: &[(&PendingWeight, Range<u64>)]) {
    for of_one in pieces.chunk_by(|a, b| std::ptr::eq(a.0, b.0)) {
        let ((weight, first), (_, last)) = (&of_one[0], &of_one[of_one.len() - 1]);
        let start = weight.info.offset;
        file.release(weight.info.shard, start + first.start..start + last.end);
    }
}
