//! Files of the test data, and tables of logits.

use std::path::{Path, PathBuf};

/// Returns the path of a file in the test data.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// Parses the integers in a text file.
pub fn ids(path: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(path).expect("tokens");
    text.split(|c: char| !c.is_ascii_digit())
        .filter(|s| !s.is_empty())
        .map(|s| s.parse().expect("an id"))
        .collect()
}

/// Reads the f32 values of a NumPy file.
pub fn npy(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("logits");
    let start = 10 + u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    bytes[start..]
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

/// Returns the root mean square of the difference, in standard deviations of `b`.
pub fn rms(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let mean = |v: &mut dyn Iterator<Item = f64>| v.sum::<f64>() / b.len() as f64;
    let centre = mean(&mut b.iter().map(|&x| f64::from(x)));
    let variance = mean(&mut b.iter().map(|&x| (f64::from(x) - centre).powi(2)));
    let error = mean(
        &mut a
            .iter()
            .zip(b)
            .map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)),
    );
    (error / variance).sqrt()
}

/// Returns the index of the largest value, the first on ties.
pub fn argmax(row: &[f32]) -> usize {
    (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}
