//! Reports of `xtask quality`: file format and Markdown tables.

use crate::machine::HostMachine;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Measurements of all modes on published files, on one device.
#[derive(Serialize, Deserialize)]
pub struct QualityReport {
    pub date: String,
    pub machine: HostMachine,
    pub device: String,
    /// Commit that gristmill was built from.
    pub commit: String,
    /// Rows of compared logits.
    pub tokens: usize,
    /// Rows of a model follow each other; the first is the reference.
    pub rows: Vec<QualityRow>,
}

/// One mode on one file.
#[derive(Clone, Serialize, Deserialize)]
pub struct QualityRow {
    pub model: String,
    /// Flags of the program; empty for the default mode.
    pub mode: String,
    /// Difference to the reference's logits; `None` for the reference.
    pub difference: Option<LogitsDifference>,
    pub perplexity: f64,
    /// Perplexity counted as llama.cpp does; `None` if the program could not.
    pub compatible: Option<f64>,
}

/// Difference of logits to a reference.
#[derive(Clone, Serialize, Deserialize)]
pub struct LogitsDifference {
    /// RMS of the difference, in standard deviations of the reference.
    pub rms: f64,
    /// Mean Kullback-Leibler divergence from the reference, in nats.
    pub divergence: f64,
    /// Rows with another largest logit.
    pub flips: usize,
}

/// Formats a report as Markdown: a table for each model.
pub fn markdown(name: &str, report: &QualityReport) -> String {
    let mut out = format!(
        "\n## {name}\n\n{} at commit {}, device `{}`; {}. {} rows of logits.\n",
        report.date, report.commit, report.device, report.machine, report.tokens
    );
    for rows in report.rows.chunk_by(|a, b| a.model == b.model) {
        out += &table(rows);
    }
    out
}

fn table(rows: &[QualityRow]) -> String {
    let mut out = format!(
        "\n### {}\n\n| flags | RMS error | KL | flips | perplexity | change | as llama.cpp | change |\n",
        rows[0].model
    );
    out += "|---|---:|---:|---:|---:|---:|---:|---:|\n";
    let change = |found: f64, base: f64| match found == base {
        true => "–".to_owned(),
        false => format!("{:+.2} %", 100.0 * (found / base - 1.0)),
    };
    for row in rows {
        let mode = match row.mode.as_str() {
            "" => "none".to_owned(),
            mode => format!("`{mode}`"),
        };
        let difference = match &row.difference {
            Some(d) => format!("{:.2} % | {:.4} | {}", 100.0 * d.rms, d.divergence, d.flips),
            None => "– | – | –".to_owned(),
        };
        let compatible = match (row.compatible, rows[0].compatible) {
            (Some(found), Some(base)) => format!("{found:.3} | {}", change(found, base)),
            _ => "– | –".to_owned(),
        };
        let (perplexity, changed) = (row.perplexity, change(row.perplexity, rows[0].perplexity));
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {mode} | {difference} | {perplexity:.3} | {changed} | {compatible} |"
        );
    }
    out
}

#[cfg(test)]
pub mod tests {
    use super::*;

    fn row(
        model: &str,
        mode: &str,
        perplexity: f64,
        difference: Option<LogitsDifference>,
    ) -> QualityRow {
        QualityRow {
            model: model.into(),
            mode: mode.into(),
            difference,
            perplexity,
            compatible: None,
        }
    }

    #[test]
    fn a_table_for_each_model() {
        let near = LogitsDifference {
            rms: 0.03,
            divergence: 0.0039,
            flips: 4,
        };
        let rows = [
            row("a", "--exact", 20.0, None),
            row("a", "", 20.1, Some(near)),
        ];
        let table = table(&rows);
        assert!(
            table.contains("| `--exact` | – | – | – | 20.000 | – | – | – |"),
            "{table}"
        );
        assert!(
            table.contains("| none | 3.00 % | 0.0039 | 4 | 20.100 | +0.50 % | – | – |"),
            "{table}"
        );
    }
}
