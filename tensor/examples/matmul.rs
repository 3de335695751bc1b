//! A product of matrices with a bias and an activation: one function, and the kernels that it is fused into.
//!
//! `cargo run --release -p gristmill-tensor --example matmul`; with `cuda` or `interp` behind `--` on that device.

use gristmill_runtime::Error;
use gristmill_tensor::eager::{self, Tensor};
use std::time::Instant;

/// Whole numbers in eighths, so that sums of their products are exact in f32.
fn numbers(count: usize, step: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * step) % 17) as f32 / 8.0 - 1.0)
        .collect()
}

/// On the device that is named, or the best there is.
pub fn main() -> Result<(), Error> {
    if let Some(device) = std::env::args()
        .nth(1)
        .filter(|name| !name.starts_with('-'))
    {
        eager::use_device(&device)?;
    }
    run(256, 128, 64)
}

/// `relu(x·w + bias)` of `x [m, k]` and `w [k, n]`, held to three loops.
pub fn run(m: usize, k: usize, n: usize) -> Result<(), Error> {
    let (x, w, bias) = (numbers(m * k, 5), numbers(k * n, 7), numbers(n, 3));
    let (tx, tw) = (
        Tensor::from(x.clone()).reshape(&[m, k]),
        Tensor::from(w.clone()).reshape(&[k, n]),
    );
    // Nothing is computed here.
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
