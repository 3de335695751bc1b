//! A convolution as a sum of matrix products over shifted windows of its input.
//!
//! It needs no convolution op; windows are views of the input.
//!
//! `cargo run --release -p gristmill-tensor --example convolution [-- DEVICE]`, by default
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
    run([3, 12, 10], 4, 3)
}

/// Convolves `x [channels, height, width]` with `w [outputs, channels, size, size]`, unpadded.
///
/// `y[o, r, c] = Σ_i Σ_p Σ_q w[o, i, p, q]·x[i, r + p, c + q]`: one matrix product with the shifted
/// image for each offset `(p, q)` in the window.
fn convolution(x: &Tensor, w: &Tensor) -> Tensor {
    let (&[channels, height, width], &[outputs, _, size, _]) = (x.dims(), w.dims()) else {
        panic!("an image and weights, not {x:?} and {w:?}")
    };
    let (rows, columns) = (height + 1 - size, width + 1 - size);
    let mut sum: Option<Tensor> = None;
    for (p, q) in (0..size).flat_map(|p| (0..size).map(move |q| (p, q))) {
        let window = x
            .slice(1, p..p + rows)
            .slice(2, q..q + columns)
            .reshape(&[channels, rows * columns]);
        let weight = w
            .slice(2, p..p + 1)
            .slice(3, q..q + 1)
            .reshape(&[outputs, channels]);
        let part = weight.matmul(&window);
        sum = Some(match sum {
            Some(sum) => sum + part,
            None => part,
        });
    }
    sum.expect("a window of one place at least")
        .reshape(&[outputs, rows, columns])
}

/// Convolves an image with `size` by `size` windows and compares the result with plain loops.
pub fn run(
    [channels, height, width]: [usize; 3],
    outputs: usize,
    size: usize,
) -> Result<(), Error> {
    let number = |i: usize| ((i * 11) % 13) as f32 / 4.0 - 1.5;
    let x: Vec<f32> = (0..channels * height * width).map(number).collect();
    let w: Vec<f32> = (0..outputs * channels * size * size).map(number).collect();
    let image = Tensor::from(x.clone()).reshape(&[channels, height, width]);
    let weights = Tensor::from(w.clone()).reshape(&[outputs, channels, size, size]);
    let y = convolution(&image, &weights);
    let got = y.to_vec::<f32>()?;
    let &[_, rows, columns] = y.dims() else {
        panic!("{y:?}")
    };
    for (at, got) in got.iter().enumerate() {
        let (o, r, c) = (at / (rows * columns), at / columns % rows, at % columns);
        let mut wanted = 0.0;
        for i in 0..channels {
            for (p, q) in (0..size).flat_map(|p| (0..size).map(move |q| (p, q))) {
                wanted += w[((o * channels + i) * size + p) * size + q]
                    * x[(i * height + r + p) * width + c + q];
            }
        }
        assert_eq!(*got, wanted, "output {o} at {r}, {c}");
    }
    println!(
        "{y:?} on {}: {} elements are what loops say",
        eager::device()?.name(),
        got.len()
    );
    Ok(())
}
