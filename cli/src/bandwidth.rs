//! Read bandwidth of memory, the limit of decode, which reads every weight in use once per token.
//!
//! In host memory the weights themselves are read, between the tests: a separate buffer may lie on
//! other NUMA nodes, and other processes share the bandwidth.

use gristmill_backend::Opened;
use gristmill_backend::cpu::Team;
use gristmill_backend::cpu::measure::{self, Passes};
use gristmill_llm::engine::Weights;
use gristmill_runtime::{Buffer, Memory, View};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::jit::{Call, Jit};
use gristmill_uop::dtype::Scalar;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that the kernel reads, larger than any cache.
const BUFFER: u64 = 1 << 30;
/// Passes on device memory, the fastest of which counts.
const PASSES: usize = 4;
/// Passes over weights in host memory, more for small models.
const OF_WEIGHTS: Passes = Passes {
    least: 8,
    most: 256,
    time: Duration::from_millis(500),
};

/// Bytes per second that a kernel reads from device memory.
///
/// `None` if the device uses host memory, computes nothing or lacks free memory.
pub fn of_device(opened: &Opened) -> Option<f64> {
    let device = opened.device.as_ref();
    let bytes = device.available().map_or(BUFFER, |n| BUFFER.min(n / 4)) as usize;
    let far = |b: &Buffer| b.host().is_none() && device.holds_data();
    let small = device.alloc(64, Memory::Weights).ok().filter(far)?;
    drop(small);
    by_kernel(opened, &device.alloc(bytes, Memory::Weights).ok()?)
}

/// Bytes per second at which `threads` threads read the weights; `None` unless these are in host
/// memory of this process.
pub fn of_weights(weights: &Weights, threads: usize) -> Option<f64> {
    let views = weights
        .buffers()
        .map(Buffer::view)
        .collect::<Result<Vec<View>, _>>()
        .ok()?;
    let words = views.iter().map(words).collect::<Option<Vec<&[u64]>>>()?;
    let team = Team::new(threads.max(1), true).ok()?;
    measure::bandwidth(&team, &words, OF_WEIGHTS)
        .ok()
        .filter(|b| *b > 0.0 && b.is_finite())
}

/// The whole 64-bit words of a weight, which is page-aligned.
fn words(view: &View) -> Option<&[u64]> {
    bytemuck::try_cast_slice(&view[..view.len() / 8 * 8]).ok()
}

/// Elements per sum of [`by_kernel`].
const ROW: usize = 4096;

/// Bytes per second of a kernel that sums rows, by the device's clock.
fn by_kernel(opened: &Opened, buffer: &Buffer) -> Option<f64> {
    let rows = buffer.len() / 4 / ROW;
    let c = Capture::new("bandwidth");
    let x = c.input("x", dims![rows, ROW], Scalar::F32);
    c.output("sums", x.sum(&[1]));
    let mut jit = Jit::new(opened.clone());
    let function = jit
        .prepare(&[Arc::new(c.finish())], &|_, _| ())
        .ok()?
        .pop()?;
    let scratch = |bytes: usize| opened.device.alloc(bytes.max(64), Memory::Scratch).ok();
    let (sums, arena) = (scratch(rows * 4)?, scratch(function.compiled.arena)?);
    let mut step = jit
        .capture(
            &[Call {
                function,
                args: vec![buffer.clone(), sums],
            }],
            &arena,
        )
        .ok()?;
    let mut best = f64::INFINITY;
    // The first pass is a warm-up.
    for _ in 0..=PASSES {
        best = best.min(step.replay_timed(&[]).ok()?.iter().sum());
    }
    Some((rows * ROW * 4) as f64 / best).filter(|b| b.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_backend::{Options, open};

    #[test]
    fn a_kernel_adds_up_what_it_reads() {
        // Host memory can be measured by a kernel too.
        let opened = open(
            "cpu",
            &Options {
                threads: Some(1),
                ..Options::default()
            },
        )
        .unwrap();
        let buffer = opened.device.alloc(8 << 20, Memory::Weights).unwrap();
        let found = by_kernel(&opened, &buffer).unwrap();
        assert!((1e6..1e13).contains(&found), "{found}");
        assert_eq!(of_device(&opened), None, "its memory is the host's");
        assert_eq!(of_device(&open("null", &Options::default()).unwrap()), None);
    }
}
