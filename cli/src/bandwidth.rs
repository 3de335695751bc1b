//! What this machine's memory delivers when it is only read.

use gristmill_runtime::{Device, Memory};
use std::sync::Barrier;
use std::time::Instant;

/// Bytes that are read; more than any cache.
const BUFFER: u64 = 1 << 30;
/// Passes, of which the best counts.
const PASSES: usize = 4;

/// Bytes a second that `threads` threads, as many as the device's team has, read together from memory like that of weights.
/// `None` where the host cannot reach it.
pub fn read_bandwidth(device: &dyn Device, threads: usize) -> Option<f64> {
    let bytes = gristmill_runtime::memory::available().map_or(BUFFER, |n| BUFFER.min(n / 4)) as usize;
    let buffer = device.alloc(bytes, Memory::Weights).ok()?;
    let threads = threads.max(1);
    let part = bytes / 8 / threads;
    // SAFETY: host memory of `bytes` bytes, aligned to pages, that nothing else uses.
    let words =
        unsafe { std::slice::from_raw_parts_mut(buffer.raw.host()?.add(buffer.offset).cast::<u64>(), bytes / 8) };
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
