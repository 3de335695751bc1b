//! Reports of `gristmill bench --ablate --json`: file format and Markdown tables.

use crate::machine::HostMachine;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};

/// One run of `gristmill bench --ablate`, of one model on one device.
#[derive(Serialize, Deserialize)]
pub struct AblationReport {
    pub date: String,
    pub command: String,
    /// Host machine; `None` if it was not recorded. The measured device is `device`.
    pub machine: Option<HostMachine>,
    /// Commit that gristmill was built from.
    pub commit: String,
    /// Device name: gristmill's own, or the one given with --device.
    pub device: String,
    pub rows: Vec<AblationRow>,
}

/// Speeds with one optimisation disabled, from one line of output. Unknown fields are ignored.
#[derive(Clone, Serialize, Deserialize)]
pub struct AblationRow {
    pub model: String,
    pub flag: String,
    /// One-line description of the optimisation.
    pub does: String,
    /// Decode speed with the optimisation disabled, in tokens/s; `None` if not measured.
    pub decode_tokens_per_second: Option<f64>,
    pub prefill_tokens_per_second: Option<f64>,
    /// Decode speed with all optimisations on, in tokens/s, measured in alternation.
    pub base_decode_tokens_per_second: Option<f64>,
    pub base_prefill_tokens_per_second: Option<f64>,
    /// Decode speed without the optimisation relative to the speed with it.
    pub decode_ratio: Option<f64>,
    pub prefill_ratio: Option<f64>,
}

/// An idea that a model's speed is attributed to.
#[derive(Deserialize)]
pub struct Idea {
    pub idea: String,
    /// Flags that disable parts of the idea; empty if it cannot be disabled.
    pub flags: Vec<String>,
    /// Gain claimed by projects that use the idea.
    pub claimed: String,
    /// Explanation of the measured gain, or the reason why it cannot be measured.
    pub why: String,
}

/// Formats a ratio of speeds as a percentage; a dash if it was not measured.
fn kept(ratio: Option<f64>) -> String {
    ratio.map_or("–".into(), |r| format!("{:.0} %", 100.0 * r))
}

/// Formats the median of speeds; a dash without samples.
fn middle(mut speeds: Vec<f64>) -> String {
    speeds.sort_unstable_by(f64::total_cmp);
    speeds.get(speeds.len() / 2).map_or("–".into(), |s| format!("{s:.1}"))
}

impl AblationReport {
    /// Returns the model's name, which all rows share.
    pub fn model(&self) -> &str {
        self.rows.first().map_or("", |row| &row.model)
    }
    fn row(&self, flag: &str) -> Option<&AblationRow> {
        self.rows.iter().find(|row| row.flag == flag)
    }
}

/// Formats reports as Markdown: runs, then a row per optimisation with two columns per report.
pub fn markdown(reports: &[(&str, AblationReport)]) -> String {
    let mut out = String::new();
    write_markdown(&mut out, reports).unwrap_or_else(|fmt::Error| unreachable!("a string takes all"));
    out
}

fn write_markdown(out: &mut String, reports: &[(&str, AblationReport)]) -> fmt::Result {
    writeln!(out, "| run | device | model | decode, tok/s | prefill, tok/s | date | commit |")?;
    writeln!(out, "|---|---|---|---:|---:|---|---|")?;
    for (name, report) in reports {
        let speeds = |of: fn(&AblationRow) -> Option<f64>| middle(report.rows.iter().filter_map(of).collect());
        let (decode, prompt) =
            (speeds(|r| r.base_decode_tokens_per_second), speeds(|r| r.base_prefill_tokens_per_second));
        let AblationReport { device, date, commit, .. } = report;
        writeln!(out, "| {name} | {device} | {} | {decode} | {prompt} | {date} | {commit} |", report.model())?;
    }
    let head: String = reports.iter().map(|(name, _)| format!(" {name}: decode | prefill |")).collect();
    writeln!(out, "\n| without | optimisation |{head}")?;
    writeln!(out, "|---|---|{}", "---:|---:|".repeat(reports.len()))?;
    for (flag, does) in flags(reports) {
        write!(out, "| `{flag}` | {does} |")?;
        for (_, report) in reports {
            match report.row(flag) {
                Some(row) => write!(out, " {} | {} |", kept(row.decode_ratio), kept(row.prefill_ratio))?,
                None => write!(out, " | |")?,
            }
        }
        writeln!(out)?;
    }
    writeln!(out)?;
    for (name, report) in reports {
        let host = report
            .machine
            .as_ref()
            .map_or(String::new(), |m| format!("; {}, {} cores, {} threads", m.processor, m.cores, m.threads));
        writeln!(out, "- {name}: `{}`{host}", report.command)?;
    }
    Ok(())
}

/// Formats the gain of an optimisation from the ratio of the speeds without and with it.
fn worth(ratio: Option<f64>) -> Option<String> {
    ratio.map(|r| format!("{:+.0} %", 100.0 * (1.0 / r - 1.0)))
}

/// Formats a section per idea: claim, measured gains, explanation.
pub fn paragraphs(ideas: &[Idea], reports: &[(&str, AblationReport)]) -> String {
    ideas.iter().map(|idea| paragraph(idea, reports)).collect()
}

fn paragraph(idea: &Idea, reports: &[(&str, AblationReport)]) -> String {
    let Idea { idea, flags, claimed, why } = idea;
    let of = |(name, report): &(&str, AblationReport), flag: &String| {
        let row = report.row(flag)?;
        let both = [("decode", worth(row.decode_ratio)), ("prefill", worth(row.prefill_ratio))];
        let both: Vec<String> = both.into_iter().filter_map(|(of, worth)| Some(format!("{of} {}", worth?))).collect();
        Some(format!("{name} {}", both.join(", ")))
    };
    let runs = |flag: &String| {
        let all: Vec<String> = reports.iter().filter_map(|report| of(report, flag)).collect();
        let all = if all.is_empty() { "no run yet".to_owned() } else { all.join("; ") };
        format!("with `{flag}`: {all}")
    };
    let measured = match flags.is_empty() {
        true => "nothing, as it cannot be disabled".to_owned(),
        false => flags.iter().map(runs).collect::<Vec<_>>().join("; "),
    };
    format!("\n### {idea}\n\n- Claim: {claimed}\n- Measured: {measured}.\n- Explanation: {why}\n")
}

/// Lists flag and description of every optimisation, taken from the first report that has it.
fn flags<'a>(reports: &'a [(&str, AblationReport)]) -> Vec<(&'a str, &'a str)> {
    let mut all: Vec<(&str, &str)> = vec![];
    for row in reports.iter().flat_map(|(_, report)| &report.rows) {
        if all.iter().all(|f| f.0 != row.flag) {
            all.push((&row.flag, &row.does));
        }
    }
    all
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn example(device: &str, flags: &[&str]) -> AblationReport {
        let row = |flag: &&str| AblationRow {
            model: "m".to_owned(),
            flag: (*flag).to_owned(),
            does: format!("what {flag} does"),
            decode_tokens_per_second: Some(5.0),
            prefill_tokens_per_second: None,
            base_decode_tokens_per_second: Some(10.0),
            base_prefill_tokens_per_second: None,
            decode_ratio: Some(0.5),
            prefill_ratio: None,
        };
        AblationReport {
            date: "2025-01-31".to_owned(),
            command: "gristmill bench m --ablate".to_owned(),
            machine: Some(HostMachine {
                processor: "CPU".to_owned(),
                features: vec![],
                cores: 4,
                threads: 2,
                memory_bytes: None,
                read_bandwidth: None,
            }),
            commit: "abc".to_owned(),
            device: device.to_owned(),
            rows: flags.iter().map(row).collect(),
        }
    }

    #[test]
    fn a_paragraph_has_what_was_measured_of_its_idea() {
        let idea = |flags: &[&str]| Idea {
            idea: "An idea".to_owned(),
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            claimed: "Much.".to_owned(),
            why: "Because.".to_owned(),
        };
        let text = |flags: &[&str]| {
            paragraphs(&[idea(flags)], &[("a", example("cpu", &["x", "y"])), ("b", example("gpu", &["y"]))])
        };
        assert_eq!(
            text(&["x", "z"]),
            "\n### An idea\n\n- Claim: Much.\n- Measured: with `x`: a decode +100 %; with `z`: no run yet.\n- Explanation: Because.\n"
        );
        assert!(text(&["y"]).contains("with `y`: a decode +100 %; b decode +100 %."));
        assert!(text(&[]).contains("Measured: nothing, as it cannot be disabled."));
    }

    #[test]
    fn a_row_for_each_flag_and_columns_for_each_run() {
        let text = markdown(&[("a", example("cpu", &["x", "y"])), ("b", example("gpu", &["y", "z"]))]);
        let rows: Vec<&str> = text.lines().filter(|l| l.starts_with("| `")).collect();
        assert_eq!(
            rows,
            [
                "| `x` | what x does | 50 % | – | | |",
                "| `y` | what y does | 50 % | – | 50 % | – |",
                "| `z` | what z does | | | 50 % | – |",
            ]
        );
        assert!(text.contains("| a | cpu | m | 10.0 | – | 2025-01-31 | abc |"), "{text}");
        assert!(text.ends_with("- b: `gristmill bench m --ablate`; CPU, 4 cores, 2 threads\n"), "{text}");
    }
}
