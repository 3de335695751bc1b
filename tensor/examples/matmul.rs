//! A matrix product with a bias and an activation, compiled and run as one function.
//!
//! `cargo run --release -p gristmill-tensor --example matmul [-- DEVICE]`, by default
//! on the best available device.

use gristmill_runtime::Error;
use gristmill_tensor::eager::{self, Tensor};
use std::time::Instant;

/// Multiples of 1/8 in `-1..=1`, so that sums of their products are exact in f32.
fn numbers(count: usize, step: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * step) % 17) as f32 / 8.0 - 1.0)
        .collect()
}

/// Runs the example on the device named by the first argument, or on the best available device.
pub fn main() -> Result<(), Error> {
    if let Some(device) = std::env::args()
        .nth(1)
        .filter(|name| !name.starts_with('-'))
    {
        eager::use_device(&device)?;
    }
    run(256, 128, 64)
}

/// Computes `relu(x·w + bias)` of `x [m, k]` and `w [k, n]`, and compares it with plain loops.
pub fn run(m: usize, k: usize, n: usize) -> Result<(), Error> {
    let (x, w, bias) = (numbers(m * k, 5), numbers(k * n, 7), numbers(n, 3));
    let (tx, tw) = (
        Tensor::from(x.clone()).reshape(&[m, k]),
        Tensor::from(w.clone()).reshape(&[k, n]),
    );
    // This only records the expression; `to_vec` compiles and runs it.
    let y = (tx.matmul(&tw) + Tensor::from(bias.clone())).maximum(&Tensor::from(0.0f32));
    let start = Instant::now();
    let got = y.to_vec::<f32>()?;
    println!(
        "{y:?} on {}: {:.1} ms with compiling",
        eager::device()?.name(),
        start.elapsed().as_secs_f64() * 1e3
    );
    for row in 0..m {
        for column in 0..n {
            let product: f32 = (0..k).map(|i| x[row * k + i] * w[i * n + column]).sum();
            assert_eq!(
                got[row * n + column],
                (product + bias[column]).max(0.0),
                "element {row}, {column}"
            );
        }
    }
    println!("{} elements are what three loops say", got.len());
    Ok(())
}
