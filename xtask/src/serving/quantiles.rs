//! Quantiles of samples.

use serde::{Deserialize, Serialize};

/// 50th, 90th and 99th percentile; zero without samples.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug, Default)]
pub struct Quantiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

impl Quantiles {
    pub fn from_samples(mut samples: Vec<f64>) -> Quantiles {
        samples.sort_by(f64::total_cmp);
        // Nearest rank: always one of the samples.
        let at = |percent: usize| {
            let rank = (samples.len() * percent).div_ceil(100).max(1);
            samples.get(rank - 1).copied().unwrap_or(0.0)
        };
        Quantiles { p50: at(50), p90: at(90), p99: at(99) }
    }
    /// Formats seconds as milliseconds, separated by spaces.
    pub fn show(&self) -> String {
        let ms = |seconds: f64| {
            let ms = seconds * 1e3;
            if ms < 10.0 { format!("{ms:.2}") } else { format!("{ms:.0}") }
        };
        [self.p50, self.p90, self.p99].map(ms).join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let hundred = Quantiles::from_samples((1..=100).rev().map(f64::from).collect());
        assert_eq!(hundred, Quantiles { p50: 50.0, p90: 90.0, p99: 99.0 });
        assert_eq!(Quantiles::from_samples(vec![3.0]), Quantiles { p50: 3.0, p90: 3.0, p99: 3.0 });
        assert_eq!(Quantiles::from_samples(vec![]), Quantiles::default());
    }
}
