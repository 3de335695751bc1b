//! Mean pooling of hidden rows.

/// Mean of hidden rows, scaled to Euclidean length 1. Each row is scaled to length 1 first, as a
/// few entries of hidden rows are a thousand times larger than the others.
pub struct MeanPooling(Vec<f64>);

impl MeanPooling {
    /// Creates the mean of no rows.
    pub fn new(width: usize) -> MeanPooling {
        MeanPooling(vec![0.0; width])
    }
    /// Adds rows, stored one after the other.
    pub fn add(&mut self, rows: &[f32]) {
        for row in rows.chunks(self.0.len()) {
            let scale = 1.0 / length(row.iter().map(|&x| f64::from(x)));
            self.0
                .iter_mut()
                .zip(row)
                .for_each(|(sum, &x)| *sum += f64::from(x) * scale);
        }
    }
    /// Returns the mean, scaled to length 1.
    pub fn values(self) -> Vec<f32> {
        let scale = 1.0 / length(self.0.iter().copied());
        self.0.into_iter().map(|x| (x * scale) as f32).collect()
    }
}

/// Returns the Euclidean length of a vector, at least the smallest positive number.
fn length(values: impl Iterator<Item = f64>) -> f64 {
    values
        .map(|x| x * x)
        .sum::<f64>()
        .sqrt()
        .max(f64::MIN_POSITIVE)
}
