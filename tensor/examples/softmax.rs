//! Softmax over rows, composed of smaller ops, next to the library's method.
//!
//! The method is also composed of elementwise ops and reductions, so that both are fused alike.
//!
//! `cargo run --release -p gristmill-tensor --example softmax [-- DEVICE]`, by default
//! on the best available device.

use gristmill_runtime::Error;
use gristmill_tensor::eager::{self, Tensor};

/// Runs the example on the device named by the first argument, or on the best available device.
pub fn main() -> Result<(), Error> {
    if let Some(device) = std::env::args()
        .nth(1)
        .filter(|name| !name.starts_with('-'))
    {
        eager::use_device(&device)?;
    }
    run(32, 200)
}

/// Computes softmax by hand and with the method, and compares both with f64.
pub fn run(rows: usize, columns: usize) -> Result<(), Error> {
    let x: Vec<f32> = (0..rows * columns)
        .map(|i| (i as f32 * 0.37).sin() * 4.0)
        .collect();
    let tensor = Tensor::from(x.clone()).reshape(&[rows, columns]);
    let e = (&tensor - tensor.max(&[1]).unsqueeze(1)).exp();
    let written = &e / e.sum(&[1]).unsqueeze(1);
    let known = tensor.softmax();
    // Realised together: common subexpressions are computed once.
    eager::realize(&[&written, &known])?;
    let (written, known) = (written.to_vec::<f32>()?, known.to_vec::<f32>()?);
    let mut most = 0f64;
    for (i, row) in x.chunks(columns).enumerate() {
        let e: Vec<f64> = row.iter().map(|&v| f64::from(v).exp()).collect();
        let sum: f64 = e.iter().sum();
        for (j, e) in e.iter().enumerate() {
            let at = i * columns + j;
            let off = [written[at], known[at]].map(|got| (f64::from(got) - e / sum).abs());
            most = off.into_iter().fold(most, f64::max);
        }
    }
    println!(
        "{rows} rows of {columns} on {}: off by {most:.1e} at most",
        eager::device()?.name()
    );
    assert!(most < 1e-6, "{most}");
    Ok(())
}
