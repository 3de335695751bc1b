//! What memory delivers when it is only read: the limit of generation, which reads every weight in use once a token.
//!
//! A loop over a buffer of its own says little on a host whose memory others use too, or whose pages lie near one core and far from another. So,
//! where the weights lie in the host's memory, it is they that are read, beside the tests that they are the limit of.

use gristmill_backend::Opened;
use gristmill_backend::cpu::{Team, Worker};
use gristmill_llm::engine::Engine;
use gristmill_runtime::{Buffer, Memory, View};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::jit::{Call, Jit};
use gristmill_uop::dtype::Scalar;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that a kernel reads; more than any cache.
const BUFFER: u64 = 1 << 30;
/// Passes of a device with memory of its own, of which the best counts.
const PASSES: usize = 4;
/// Passes over weights in the host's memory, of which the best counts: so many at least, and more of small models until the time has passed.
const LEAST_PASSES: usize = 8;
const MOST_PASSES: usize = 256;
const LEAST_TIME: Duration = Duration::from_millis(500);

/// Bytes a second that a device with memory of its own reads by a kernel. `None` where memory is the host's, where it runs nothing, or has no room.
pub fn of_device(opened: &Opened) -> Option<f64> {
    let device = opened.device.as_ref();
    let bytes = device.available().map_or(BUFFER, |n| BUFFER.min(n / 4)) as usize;
    let far = |b: &Buffer| b.host().is_none() && device.holds_data();
    let small = device.alloc(64, Memory::Weights).ok().filter(far)?;
    drop(small);
    by_kernel(opened, &device.alloc(bytes, Memory::Weights).ok()?)
}

/// Bytes a second at which `threads` threads, as many as the device's team has, read the model's weights in the host's memory; `None` where they lie
/// elsewhere.
pub fn of_weights(engine: &Engine, threads: usize) -> Option<f64> {
    let views = engine.weights().map(Buffer::view).collect::<Result<Vec<View>, _>>().ok()?;
    by_threads(&views.iter().map(words).collect::<Option<Vec<&[u64]>>>()?, threads.max(1))
}

/// Whole words of a weight, which begins at a page.
fn words(view: &View) -> Option<&[u64]> {
    bytemuck::try_cast_slice(&view[..view.len() / 8 * 8]).ok()
}

/// Numbers that one sum of [`by_kernel`] is of.
const ROW: usize = 4096;

/// Bytes a second that a kernel reads which adds them up, by the device's own clock.
fn by_kernel(opened: &Opened, buffer: &Buffer) -> Option<f64> {
    let rows = buffer.len() / 4 / ROW;
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

/// A team of its own, whose workers stay on cores of their own: two that a system puts on one core read half as much, for as long as it likes.
fn by_threads(weights: &[&[u64]], threads: usize) -> Option<f64> {
    let team = Team::new(threads, true).ok()?;
    let read = |worker: &Worker| {
        // Of each weight a part, as kernels share their rows.
        for words in weights {
            let part = |i: usize| words.len() * i / threads;
            std::hint::black_box(sum(&words[part(worker.index)..part(worker.index + 1)]));
        }
    };
    let (begin, mut passes, mut best) = (Instant::now(), 0, f64::INFINITY);
    // Clocks and memories that slept take their time to wake.
    while passes < LEAST_PASSES || passes < MOST_PASSES && begin.elapsed() < LEAST_TIME {
        let start = Instant::now();
        team.run(0, &read).ok()?;
        best = best.min(start.elapsed().as_secs_f64());
        passes += 1;
    }
    let bytes: usize = weights.iter().map(|w| size_of_val(*w)).sum();
    Some(bytes as f64 / best).filter(|b| *b > 0.0 && b.is_finite())
}

/// Parts that a thread reads side by side: one alone keeps too few cache lines on their way.
const STREAMS: usize = 4;

/// The sum of all whole groups of 16 words.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    let mut add = |group: &[u64]| {
        for (s, w) in sums.iter_mut().zip(group) {
            *s = s.wrapping_add(*w);
        }
    };
    let part = words.len() / (16 * STREAMS) * 16;
    for at in (0..part).step_by(16) {
        for stream in 0..STREAMS {
            add(&words[stream * part + at..][..16]);
        }
    }
    words[STREAMS * part..].chunks_exact(16).for_each(add);
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_backend::{Options, open};

    #[test]
    fn threads_read_all_there_is() {
        let (a, b) = (vec![1u64; 1 << 20], vec![1u64; 3001]);
        let found = by_threads(&[&a, &b], 2).unwrap();
        assert!((1e6..1e13).contains(&found), "{found}");
        assert_eq!(sum(&a) + sum(&b[..3000]) + sum(&b[3000..]), (1 << 20) + 2992, "groups of 16");
    }

    #[test]
    fn a_kernel_adds_up_what_it_reads() {
        // A device of the host's memory can be measured either way.
        let opened = open("cpu", &Options { threads: Some(1), ..Options::default() }).unwrap();
        let buffer = opened.device.alloc(8 << 20, Memory::Weights).unwrap();
        let found = by_kernel(&opened, &buffer).unwrap();
        assert!((1e6..1e13).contains(&found), "{found}");
        assert_eq!(of_device(&opened), None, "its memory is the host's");
        assert_eq!(of_device(&open("null", &Options::default()).unwrap()), None);
    }
}
