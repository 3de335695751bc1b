//! What a device's memory delivers when it is only read.

use gristmill_backend::Opened;
use gristmill_runtime::{Buffer, Memory};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::jit::{Call, Jit};
use gristmill_uop::dtype::Scalar;
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// Bytes that are read; more than any cache.
const BUFFER: u64 = 1 << 30;
/// Passes, of which the best counts.
const PASSES: usize = 4;

/// Bytes a second that the device reads from memory like that of weights: by a kernel of its own, or, where its memory is the host's, by
/// `threads` threads, as many as its team has. `None` where it runs nothing, or has no room.
pub fn read_bandwidth(opened: &Opened, threads: usize) -> Option<f64> {
    let device = opened.device.as_ref();
    let bytes = device.available().map_or(BUFFER, |n| BUFFER.min(n / 4)) as usize;
    let buffer = device.alloc(bytes, Memory::Weights).ok()?;
    match buffer.raw.host() {
        Some(start) => by_threads(start.wrapping_add(buffer.offset), bytes, threads),
        None if device.holds_data() => by_kernel(opened, &buffer),
        None => None,
    }
}

/// Numbers that one sum of [`by_kernel`] is of.
const ROW: usize = 4096;

/// Bytes a second that a kernel reads which adds them up, by the device's own clock.
fn by_kernel(opened: &Opened, buffer: &Buffer) -> Option<f64> {
    let rows = buffer.len / 4 / ROW;
    let c = Capture::new("bandwidth");
    let x = c.input("x", dims![rows, ROW], Scalar::F32);
    c.output("sums", x.sum(&[1]));
    let mut jit = Jit::new(opened.clone());
    let function = jit.prepare(&[Arc::new(c.finish())], &|_, _| ()).ok()?.pop()?;
    let scratch = |bytes: usize| opened.device.alloc(bytes.max(64), Memory::Scratch).ok();
    let (sums, arena) = (scratch(rows * 4)?, scratch(function.compiled.arena)?);
    let mut step = jit.capture(&[Call { function, args: vec![buffer.clone(), sums] }], &arena).ok()?;
    let mut best = f64::INFINITY;
    // The first pass is for what is only done once.
    for _ in 0..=PASSES {
        best = best.min(step.replay_timed(&[]).ok()?.iter().sum());
    }
    Some((rows * ROW * 4) as f64 / best).filter(|b| b.is_finite())
}

fn by_threads(start: *mut u8, bytes: usize, threads: usize) -> Option<f64> {
    let threads = threads.max(1);
    let part = bytes / 8 / threads;
    // SAFETY: host memory of `bytes` bytes, aligned to pages, that nothing else uses.
    let words = unsafe { std::slice::from_raw_parts_mut(start.cast::<u64>(), bytes / 8) };
    let barrier = Barrier::new(threads + 1);
    let best = std::thread::scope(|scope| {
        for words in words.chunks_mut(part).take(threads) {
            let barrier = &barrier;
            scope.spawn(move || {
                // Pages come to be where they are first written.
                words.fill(1);
                for _ in 0..PASSES {
                    barrier.wait();
                    std::hint::black_box(sum(words));
                    barrier.wait();
                }
            });
        }
        let mut best = f64::INFINITY;
        for _ in 0..PASSES {
            barrier.wait();
            let start = Instant::now();
            barrier.wait();
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    });
    Some((part * threads * 8) as f64 / best)
}

fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    for group in words.chunks_exact(16) {
        for (s, w) in sums.iter_mut().zip(group) {
            *s = s.wrapping_add(*w);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_backend::{Options, open};

    #[test]
    fn a_kernel_adds_up_what_it_reads() {
        // A device of the host's memory can be measured either way.
        let opened = open("cpu", &Options { threads: Some(1), ..Options::default() }).unwrap();
        let buffer = opened.device.alloc(8 << 20, Memory::Weights).unwrap();
        let found = by_kernel(&opened, &buffer).unwrap();
        assert!((1e6..1e13).contains(&found), "{found}");
        let null = open("null", &Options::default()).unwrap();
        assert_eq!(read_bandwidth(&null, 1), None);
    }
}
