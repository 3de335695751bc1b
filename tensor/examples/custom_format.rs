//! A custom quantisation format, defined by the description of one block.
//!
//! Every device derives its dequantisation and its integer dot products from that description.
//!
//! `cargo run --release -p gristmill-tensor --example custom_format [-- DEVICE]`, by default
//! on the best available device.

use gristmill_runtime::Error;
use gristmill_tensor::eager::{self, Tensor};
use gristmill_tensor::evaluate;
use gristmill_uop::Encoding;

/// Blocks of 32 elements: an f32 scale, then 16 bytes of 4-bit codes with an offset of 8.
///
/// The low nibbles contain the first 16 elements, the high nibbles the last 16.
static NIBBLES: Encoding = Encoding {
    name: "nibbles",
    elements: 32,
    bytes: 4 + 16,
    value: |b| {
        let code = b.u8(b.k() % 16 + 4) >> (b.k() / 16 * 4) & 15;
        (code - 8) * b.f32(0)
    },
};

/// Quantises one block; the element of largest magnitude becomes 7 or -7.
fn encoded(numbers: &[f32]) -> Vec<u8> {
    let largest = numbers.iter().fold(0f32, |m, v| m.max(v.abs()));
    let scale = largest.max(f32::MIN_POSITIVE) / 7.0;
    let code = |v: f32| ((v / scale).round() as i8 + 8) as u8;
    let (low, high) = numbers.split_at(16);
    let codes = low.iter().zip(high).map(|(&a, &b)| code(a) | code(b) << 4);
    scale.to_le_bytes().into_iter().chain(codes).collect()
}

/// Runs the example on the device named by the first argument, or on the best available device.
pub fn main() -> Result<(), Error> {
    if let Some(device) = std::env::args()
        .nth(1)
        .filter(|name| !name.starts_with('-'))
    {
        eager::use_device(&device)?;
    }
    run(64, 256)
}

/// Multiplies a packed matrix by a vector and compares the result with f64 sums.
pub fn run(rows: usize, columns: usize) -> Result<(), Error> {
    let numbers: Vec<f32> = (0..rows * columns)
        .map(|i| (i as f32 * 0.71).sin())
        .collect();
    let bytes: Vec<u8> = numbers.chunks(NIBBLES.elements).flat_map(encoded).collect();
    let x: Vec<f32> = (0..columns).map(|i| (i as f32 * 0.13).cos()).collect();
    let w = Tensor::packed(&NIBBLES, &[rows, columns], bytes.clone());
    let y = Tensor::from([x.clone()].concat()).unsqueeze(0).linear(&w);
    let got = y.to_vec::<f32>()?;
    // The reference dequantises by evaluating the description.
    let unpacked = evaluate::decode(&NIBBLES, &bytes);
    let (mut off, mut largest) = (0f64, 0f64);
    for (row, got) in unpacked.chunks(columns).zip(&got) {
        let wanted: f64 = row.iter().zip(&x).map(|(w, &x)| w * f64::from(x)).sum();
        off = off.max((wanted - f64::from(*got)).abs());
        largest = largest.max(wanted.abs());
    }
    println!(
        "{rows} rows of {columns} numbers in {} bytes on {}: off by {:.1e} of the largest sum",
        bytes.len(),
        eager::device()?.name(),
        off / largest
    );
    // Activations are quantised to int8, each with an error of up to half a step: 1/254 of the
    // largest magnitude.
    assert!(off < 0.02 * largest, "{off} beside {largest}");
    Ok(())
}
