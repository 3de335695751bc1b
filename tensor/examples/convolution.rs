//! A small convolution as windows of its input: no operation of its own, and no copy of the windows.
//!
//! `cargo run --release -p gristmill-tensor --example convolution`; with `cuda` or `interp` behind `--` on that device.

use gristmill_runtime::Error;
use gristmill_tensor::eager::{self, Tensor};

/// On the device that is named, or the best there is.
pub fn main() -> Result<(), Error> {
    if let Some(device) = std::env::args()
        .nth(1)
        .filter(|name| !name.starts_with('-'))
    {
        eager::use_device(&device)?;
    }
    run([3, 12, 10], 4, 3)
}

/// `y[o, r, c] = Σ_i Σ_p Σ_q w[o, i, p, q]·x[i, r + p, c + q]` of `x [channels, height, width]` and `w [outputs, channels, size, size]`: each place of
/// the window is the image, shifted, and a product with a matrix.
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

/// Of that image and so many outputs, with windows of `size` by `size`: held to loops.
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
