//! `xtask fit FILE`: fits the cost model's coefficients of a machine to measured kernel times.
//!
//! `gristmill tune --timings FILE` writes the times, each with the features that the cost model
//! counted (`uop/src/features.rs`). The fit minimises the mean absolute logarithm of modelled over
//! measured seconds, with a small penalty on leaving the coefficients that follow from the
//! machine's description. Coefficients that no kernel uses stay.

mod orders;
mod timing;

use anyhow::{Result, bail};
use orders::orders;
use std::path::PathBuf;
use timing::{Coefficients, KernelTime};

const NOTES: &str = "\
Prints the coefficients before and after, the median error, and for each kind of decision how well
modelled and measured times agree on the order of plans (Kendall's tau; 1 is the same order, 0 none).

Examples:
  gristmill tune MODEL.gguf --device cuda -p 0 -d 1024 --timings docs/timings/h200.jsonl
  cargo xtask fit docs/timings/h200.jsonl";

#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// Files of one machine that `gristmill tune --timings` wrote
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Returns true if the files could be fitted.
pub fn run(options: &Options) -> Result<bool> {
    let timings = timing::read(&options.files)?;
    let Some(first) = timings.first() else {
        bail!("there are no times in these files");
    };
    if let Some(other) = timings.iter().find(|t| t.machine != first.machine) {
        bail!(
            "the files are of {} and {}: fit one machine",
            first.machine,
            other.machine
        );
    }
    let kernels = timing::kernels(&timings);
    let before = first.facts.clone();
    let after = fitted(&kernels, &before);
    println!(
        "{}: {} kernels of {} plans\n",
        first.machine,
        kernels.len(),
        timings.len()
    );
    println!(
        "{:<16} {:>12} {:>12} {:>8}",
        "coefficient", "before", "after", "kernels"
    );
    for (name, &seconds) in &before {
        let used = kernels.iter().filter(|k| k.uses(name)).count();
        println!(
            "{name:<16} {seconds:>12.3e} {:>12.3e} {used:>8}",
            after[name]
        );
    }
    let errors = [&before, &after].map(|by| median_error(&kernels, by));
    println!(
        "\nmedian error {:.1} %, fitted {:.1} %\n",
        100.0 * errors[0],
        100.0 * errors[1]
    );
    println!(
        "{:<14} {:>6} {:>8} {:>8} {:>8}",
        "decision", "pairs", "asked", "before", "fitted"
    );
    for row in orders(&timings, [&before, &after]) {
        println!("{row}");
    }
    Ok(true)
}

/// Penalty on the mean absolute logarithm of a coefficient's change, as a part of the error's.
const STAY: f64 = 0.01;
/// Factors by which a coefficient is changed, coarse ones first.
const FACTORS: [f64; 5] = [2.0, 1.4, 1.15, 1.05, 1.01];
/// Largest factor between a coefficient and the one at the start.
const MOST: f64 = 16.0;

/// Fits by descent along single coefficients and pairs of them, with multiplicative steps: few
/// coefficients and thousands of kernels take well under a second.
fn fitted(kernels: &[KernelTime], start: &Coefficients) -> Coefficients {
    let loss = |by: &Coefficients| {
        let errors: f64 = kernels.iter().map(|k| k.error(by).abs()).sum();
        let left = |(name, s): (&String, &f64)| (s / start[name]).ln().abs();
        let left: f64 = by.iter().map(left).sum();
        errors / kernels.len().max(1) as f64 + STAY * left / start.len() as f64
    };
    let used = |name: &&String| kernels.iter().any(|k| k.uses(name));
    let names: Vec<&String> = start.keys().filter(used).collect();
    let pairs = names
        .iter()
        .flat_map(|a| names.iter().map(move |b| [*a, *b]));
    let pairs: Vec<[&String; 2]> = pairs.collect();
    let (mut best, mut least) = (start.clone(), loss(start));
    for factor in FACTORS {
        let mut gained = true;
        while gained {
            gained = false;
            // A pair of a coefficient with itself changes that alone.
            for &[a, b] in &pairs {
                for by in [
                    [factor, factor],
                    [factor, 1.0 / factor],
                    [1.0 / factor, 1.0 / factor],
                ] {
                    let mut next = best.clone();
                    for (name, by) in [a, b].into_iter().zip(by) {
                        let most = [start[name] / MOST, start[name] * MOST];
                        next.insert(name.clone(), (best[name] * by).clamp(most[0], most[1]));
                    }
                    let found = loss(&next);
                    if found < least - 1e-9 {
                        (best, least, gained) = (next, found, true);
                    }
                }
            }
        }
    }
    best
}

/// Median of `|modelled / measured - 1|`, as a logarithm.
fn median_error(kernels: &[KernelTime], by: &Coefficients) -> f64 {
    let mut errors: Vec<f64> = kernels
        .iter()
        .map(|k| k.error(by).abs().exp() - 1.0)
        .collect();
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Kernels whose times follow from coefficients are fitted to these.
    #[test]
    fn coefficients_are_found_again() {
        let of = |launch: f64, memory: f64, operation: f64| {
            let names = [
                ("launch", launch),
                ("memory", memory),
                ("operation", operation),
            ];
            names.map(|(name, s)| (name.to_owned(), s)).into()
        };
        let (start, truth): (Coefficients, Coefficients) =
            (of(2e-6, 1e-12, 1e-14), of(1e-6, 2e-12, 3e-14));
        let one = |name: &str, amount: f64| BTreeMap::from([(name.to_owned(), amount)]);
        let kernels: Vec<KernelTime> = (1..60)
            .map(|i| {
                let (bytes, operations) = (f64::from(i) * 1e5, f64::from(i * i % 37) * 1e7);
                let mut kernel = KernelTime {
                    fixed: one("launch", 1.0),
                    memory: one("memory", bytes),
                    compute: one("operation", operations),
                    seconds: 0.0,
                };
                kernel.seconds = kernel.modelled(&truth);
                kernel
            })
            .collect();
        let found = fitted(&kernels, &start);
        for (name, seconds) in &truth {
            assert!(
                (found[name] / seconds).ln().abs() < 0.05,
                "{name}: {found:?}"
            );
        }
        assert!(median_error(&kernels, &found) < 0.02);
    }
}
