//! Measured times as `gristmill tune --timings` writes them.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Seconds per unit by the name of the feature.
pub type Coefficients = BTreeMap<String, f64>;

/// Two plans of one decision; see `cli/src/timings.rs`.
#[derive(Deserialize)]
pub struct Timing {
    pub machine: String,
    /// Coefficients that follow from the machine's description.
    pub facts: Coefficients,
    pub model: String,
    pub tokens: usize,
    pub depth: usize,
    pub kind: String,
    pub keys: Vec<String>,
    pub modelled: [f64; 2],
    /// Seconds of the whole step, and the relative standard error of their ratio.
    pub seconds: [f64; 2],
    pub error: f64,
    /// Seconds of the step that no kernel accounts for, per launch.
    pub gap: f64,
    pub kernels: [Vec<KernelTime>; 2],
}

/// All launches of one kernel in a step.
#[derive(Deserialize, Clone)]
pub struct KernelTime {
    pub seconds: f64,
    pub fixed: BTreeMap<String, f64>,
    pub memory: BTreeMap<String, f64>,
    pub compute: BTreeMap<String, f64>,
}

impl KernelTime {
    /// Modelled seconds: `fixed + max(memory, compute)`.
    pub fn modelled(&self, by: &Coefficients) -> f64 {
        let seconds = |amounts: &BTreeMap<String, f64>| -> f64 {
            let each = |(name, amount): (&String, &f64)| amount * by.get(name).unwrap_or(&0.0);
            amounts.iter().map(each).sum()
        };
        seconds(&self.fixed) + seconds(&self.memory).max(seconds(&self.compute))
    }
    /// Logarithm of modelled over measured seconds.
    pub fn error(&self, by: &Coefficients) -> f64 {
        (self.modelled(by) / self.seconds).ln()
    }
    /// Whether some amount is of this feature.
    pub fn uses(&self, name: &str) -> bool {
        [&self.fixed, &self.memory, &self.compute]
            .iter()
            .any(|of| of.contains_key(name))
    }
}

/// Reads files of JSON lines.
pub fn read(files: &[PathBuf]) -> Result<Vec<Timing>> {
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        for (number, line) in text.lines().enumerate() {
            let timing = serde_json::from_str(line);
            all.push(timing.with_context(|| format!("{}:{}", file.display(), number + 1))?);
        }
    }
    Ok(all)
}

/// Kernels with a measured time, each form once with the median of its times. A launch takes its
/// part of the time between kernels.
pub fn kernels(timings: &[Timing]) -> Vec<KernelTime> {
    let mut alike: BTreeMap<String, Vec<KernelTime>> = BTreeMap::new();
    for timing in timings {
        for kernel in timing
            .kernels
            .iter()
            .flatten()
            .filter(|kernel| kernel.seconds > 0.0)
        {
            let launches = kernel.fixed.get("launch").unwrap_or(&0.0);
            let seconds = kernel.seconds + launches * timing.gap.max(0.0);
            let form = format!(
                "{:?} {:?} {:?}",
                kernel.fixed, kernel.memory, kernel.compute
            );
            alike.entry(form).or_default().push(KernelTime {
                seconds,
                ..kernel.clone()
            });
        }
    }
    let median = |mut of: Vec<KernelTime>| {
        of.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        of.swap_remove(of.len() / 2)
    };
    alike.into_values().map(median).collect()
}
