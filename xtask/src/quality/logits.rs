//! Files of `gristmill logits`, and the difference of two.

use super::report::LogitsDifference;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// A NumPy file of f32 logits: a row for each token.
pub struct LogitsFile {
    path: PathBuf,
    rows: usize,
    vocabulary: usize,
}

impl LogitsFile {
    pub fn open(path: &Path) -> Result<LogitsFile> {
        let (_, header) = opened(path)?;
        let (rows, vocabulary) = shape(&header)
            .with_context(|| format!("{} has no table of f32: {header}", path.display()))?;
        Ok(LogitsFile {
            path: path.to_owned(),
            rows,
            vocabulary,
        })
    }

    /// Compares this file with a reference of the same tokens, row by row.
    pub fn compare(&self, reference: &LogitsFile) -> Result<LogitsDifference> {
        ensure!(
            (self.rows, self.vocabulary) == (reference.rows, reference.vocabulary),
            "{} and {} are of different shapes",
            self.path.display(),
            reference.path.display()
        );
        let (mut file, _) = opened(&self.path)?;
        let (mut expected, _) = opened(&reference.path)?;
        let mut sums = Sums::default();
        for _ in 0..self.rows {
            let expected = row(&mut expected, self.vocabulary)?;
            sums.add(&row(&mut file, self.vocabulary)?, &expected);
        }
        Ok(sums.difference())
    }
}

/// Opens a file at its numbers; returns its header, too.
fn opened(path: &Path) -> Result<(BufReader<File>, String)> {
    let context = || format!("cannot read {}", path.display());
    let mut file = BufReader::new(File::open(path).with_context(context)?);
    let mut start = [0; 10];
    file.read_exact(&mut start).with_context(context)?;
    let mut header = vec![0; usize::from(u16::from_le_bytes([start[8], start[9]]))];
    file.read_exact(&mut header).with_context(context)?;
    Ok((file, String::from_utf8_lossy(&header).into_owned()))
}

/// Returns the shape in a header, `{'descr': '<f4', …, 'shape': (ROWS, COLUMNS)}`.
fn shape(header: &str) -> Option<(usize, usize)> {
    let numbers = header.split_once('(')?.1.split_once(')')?.0;
    let (rows, columns) = numbers.split_once(',')?;
    Some((rows.trim().parse().ok()?, columns.trim().parse().ok()?))
}

fn row(file: &mut impl Read, vocabulary: usize) -> Result<Vec<f32>> {
    let mut bytes = vec![0; 4 * vocabulary];
    file.read_exact(&mut bytes)?;
    let number = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    Ok(bytes.chunks_exact(4).map(number).collect())
}

/// Sums over the compared rows of logits, from which the means are taken.
#[derive(Default)]
struct Sums {
    rows: usize,
    count: f64,
    /// Sum of the reference's logits.
    sum: f64,
    /// Sum of their squares.
    squares: f64,
    /// Sum of squared differences.
    error: f64,
    divergence: f64,
    flips: usize,
}

impl Sums {
    fn add(&mut self, found: &[f32], expected: &[f32]) {
        self.rows += 1;
        self.count += expected.len() as f64;
        self.flips += usize::from(argmax(found) != argmax(expected));
        let (all_found, all_expected) = (normaliser(found), normaliser(expected));
        for (&f, &e) in found.iter().zip(expected) {
            let (f, e) = (f64::from(f), f64::from(e));
            self.sum += e;
            self.squares += e * e;
            self.error += (f - e) * (f - e);
            let (f, e) = (f - all_found, e - all_expected);
            self.divergence += e.exp() * (e - f);
        }
    }

    fn difference(&self) -> LogitsDifference {
        let deviation = self.squares - self.sum * self.sum / self.count;
        LogitsDifference {
            rms: (self.error / deviation).sqrt(),
            divergence: self.divergence / self.rows as f64,
            flips: self.flips,
        }
    }
}

fn argmax(row: &[f32]) -> usize {
    (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// Returns the logarithm of the sum of exponentials.
fn normaliser(row: &[f32]) -> f64 {
    let most = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    most + row
        .iter()
        .map(|&logit| (f64::from(logit) - most).exp())
        .sum::<f64>()
        .ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_known_rows() {
        let mut sums = Sums::default();
        // p = (1/2, 1/2), q = (3/4, 1/4); a constant added to a row changes nothing but the RMS.
        sums.add(&[3f32.ln(), 0.0], &[0.0, 0.0]);
        sums.add(&[7.0, 9.0], &[5.0, 7.0]);
        let found = sums.difference();
        let divergence = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        assert!((found.divergence - divergence / 2.0).abs() < 1e-6);
        // The second of two equal logits is not the first.
        assert_eq!(found.flips, 0);
        let (error, deviation) = (3f64.ln().powi(2) + 8.0, 74.0 - 144.0 / 4.0);
        assert!((found.rms - (error / deviation).sqrt()).abs() < 1e-6);
    }

    #[test]
    fn shapes_are_read() {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (110, 49152), }  \n";
        assert_eq!(shape(header), Some((110, 49152)));
        assert_eq!(shape("{'shape': (110,), }"), None);
    }
}
