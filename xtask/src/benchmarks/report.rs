//! Reports of `xtask bench-peer`: file format, statistics and Markdown table.

use crate::machine::HostMachine;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};

/// One run of `xtask bench-peer`.
#[derive(Serialize, Deserialize)]
pub struct BenchReport {
    pub date: String,
    pub command: String,
    pub machine: HostMachine,
    /// Commit that gristmill was built from.
    pub commit: String,
    pub peer: Peer,
    pub rows: Vec<BenchRow>,
}

/// The program that gristmill is compared with.
#[derive(Default, Serialize, Deserialize)]
pub struct Peer {
    /// Name given with --peer-name.
    pub name: String,
    /// Build number and commit that the peer reports.
    pub build: String,
}

/// Results of one test of one model.
#[derive(Serialize, Deserialize)]
pub struct BenchRow {
    pub model: String,
    pub test: Test,
    pub depth: usize,
    pub gristmill: Side,
    /// One side for each -fa setting of the peer.
    pub peer: Vec<Side>,
    /// Bytes that gristmill reads per token.
    pub bytes_per_token: Option<f64>,
}

#[derive(Serialize, Deserialize)]
pub struct Side {
    pub label: String,
    /// Samples in the order taken: tokens/s, or seconds for the start-up test.
    pub samples: Vec<f64>,
    /// Share of all cores that other programs used during each sample; empty if unknown.
    #[serde(default)]
    pub others: Vec<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Test {
    Prompt(usize),
    Generation(usize),
    /// Start-up: a process that loads the model and computes one token.
    Start,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Test::Prompt(n) => write!(f, "pp{n}"),
            Test::Generation(n) => write!(f, "tg{n}"),
            Test::Start => write!(f, "start"),
        }
    }
}

impl From<Test> for String {
    fn from(test: Test) -> String {
        test.to_string()
    }
}

impl TryFrom<String> for Test {
    type Error = String;

    fn try_from(text: String) -> Result<Test, String> {
        let number = |digits: &str| digits.parse().map_err(|_| format!("`{text}` is no test"));
        match text.split_at_checked(2) {
            Some(("pp", digits)) => Ok(Test::Prompt(number(digits)?)),
            Some(("tg", digits)) => Ok(Test::Generation(number(digits)?)),
            _ if text == "start" => Ok(Test::Start),
            _ => Err(format!("`{text}` is no test")),
        }
    }
}

impl Test {
    /// Formats a sample with its unit.
    pub fn show(self, value: f64) -> String {
        format!("{value:.2} {}", if self == Test::Start { "s" } else { "tok/s" })
    }
}

/// Minimum, median and maximum of samples.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SampleSpread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl SampleSpread {
    /// Returns `None` without samples.
    pub fn from_samples(samples: &[f64]) -> Option<SampleSpread> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        // Mean of the two middle samples, which coincide if the count is odd.
        let median = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
        Some(SampleSpread { least, median, most })
    }
}

impl fmt::Display for SampleSpread {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:.2} / **{:.2}** / {:.2}", self.least, self.median, self.most)
    }
}

impl BenchRow {
    /// Returns the peer's -fa setting with the better median.
    pub fn best(&self) -> Option<(&Side, SampleSpread)> {
        let sign = if self.test == Test::Start { -1.0 } else { 1.0 };
        let spreads = self.peer.iter().filter_map(|side| Some((side, SampleSpread::from_samples(&side.samples)?)));
        spreads.max_by(|(_, a), (_, b)| (sign * a.median).total_cmp(&(sign * b.median)))
    }

    /// Returns gristmill's speed relative to the peer's.
    fn ratio(&self, ours: SampleSpread, peer: SampleSpread) -> f64 {
        if self.test == Test::Start { peer.median / ours.median } else { ours.median / peer.median }
    }
}

/// Formats the report as Markdown.
pub fn markdown(report: &BenchReport) -> String {
    let mut out = String::new();
    write_markdown(&mut out, report).unwrap_or_else(|fmt::Error| unreachable!("a string takes all"));
    out
}

fn write_markdown(out: &mut String, report: &BenchReport) -> fmt::Result {
    let BenchReport { date, command, machine, commit, peer, rows } = report;
    writeln!(out, "- Machine: {machine}")?;
    writeln!(out, "- Gristmill: {commit}")?;
    writeln!(out, "- Peer: {}, {}", peer.name, peer.build)?;
    writeln!(out, "- Date: {date}")?;
    writeln!(out, "- Command: `{command}`")?;
    let sides = rows.iter().flat_map(|row| row.peer.iter().chain([&row.gristmill]));
    let others: Vec<f64> = sides.flat_map(|side| side.others.iter().map(|share| share * 100.0)).collect();
    if let Some(SampleSpread { least, median, most }) = SampleSpread::from_samples(&others) {
        writeln!(
            out,
            "- Other programs used {least:.0} / **{median:.0}** / {most:.0} % of the cores during the samples"
        )?;
    }
    writeln!(out)?;
    writeln!(out, "| model | test | depth | gristmill | peer | its best | unit | ratio | bandwidth |")?;
    writeln!(out, "|---|---|---:|---:|---:|---|---|---:|---:|")?;
    for row in rows {
        let (Some(ours), Some((side, theirs))) = (SampleSpread::from_samples(&row.gristmill.samples), row.best())
        else {
            continue;
        };
        let unit = if row.test == Test::Start { "s" } else { "tok/s" };
        let share = row.bytes_per_token.zip(machine.read_bandwidth).map(|(bytes, most)| bytes * ours.median / most);
        let share = share.map_or(String::new(), |share| format!("{:.0} %", share * 100.0));
        let ratio = row.ratio(ours, theirs);
        let BenchRow { model, test, depth, .. } = row;
        writeln!(
            out,
            "| {model} | {test} | {depth} | {ours} | {theirs} | {} | {unit} | {ratio:.2} | {share} |",
            side.label
        )?;
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn example() -> BenchReport {
        let side = |label: &str, samples: &[f64]| Side {
            label: label.to_owned(),
            samples: samples.to_vec(),
            others: vec![0.25; samples.len()],
        };
        let row = |test, ours: &[f64], zero: &[f64], one: &[f64], bytes| BenchRow {
            model: "m.gguf".to_owned(),
            test,
            depth: 0,
            gristmill: side("gristmill", ours),
            peer: vec![side("-fa 0", zero), side("-fa 1", one)],
            bytes_per_token: bytes,
        };
        BenchReport {
            date: "2025-01-31".to_owned(),
            command: "cargo xtask bench-peer".to_owned(),
            machine: HostMachine {
                processor: "CPU".to_owned(),
                features: vec!["avx2".to_owned()],
                cores: 4,
                threads: 2,
                memory_bytes: Some(24 << 30),
                read_bandwidth: Some(40e9),
            },
            commit: "abc".to_owned(),
            peer: Peer { name: "llama.cpp".to_owned(), build: "build 1 (x)".to_owned() },
            rows: vec![
                row(Test::Generation(8), &[30.0, 20.0, 10.0], &[10.0, 10.0, 9.0], &[4.0, 20.0, 16.0], Some(1e9)),
                row(Test::Start, &[1.0, 2.0], &[6.0, 6.0], &[3.0, 3.0], None),
            ],
        }
    }

    #[test]
    fn spreads() {
        let spread = |least, median, most| Some(SampleSpread { least, median, most });
        assert_eq!(SampleSpread::from_samples(&[]), None);
        assert_eq!(SampleSpread::from_samples(&[2.0]), spread(2.0, 2.0, 2.0));
        assert_eq!(SampleSpread::from_samples(&[3.0, 1.0, 2.0]), spread(1.0, 2.0, 3.0));
        assert_eq!(SampleSpread::from_samples(&[4.0, 1.0, 2.0, 8.0]), spread(1.0, 3.0, 8.0));
    }

    #[test]
    fn tests_have_names() {
        for test in [Test::Prompt(512), Test::Generation(64), Test::Start] {
            assert_eq!(Test::try_from(test.to_string()), Ok(test));
        }
        for text in ["", "p", "ppx", "tg", "starts"] {
            assert!(Test::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn the_table_compares_with_the_better_way() {
        let text = markdown(&example());
        let rows: Vec<&str> = text.lines().rev().take(2).collect();
        assert_eq!(
            rows[1],
            "| m.gguf | tg8 | 0 | 10.00 / **20.00** / 30.00 | 4.00 / **16.00** / 20.00 | -fa 1 | tok/s | 1.25 | 50 % |"
        );
        let start = "| m.gguf | start | 0 | 1.00 / **1.50** / 2.00 | 3.00 / **3.00** / 3.00 | -fa 1 | s | 2.00 |  |";
        assert_eq!(rows[0], start);
        assert!(text.starts_with("- Machine: CPU, 4 cores, 24 GiB, reads 40.0 GB/s with 2 threads; avx2\n"), "{text}");
        assert!(text.contains("- Other programs used 25 / **25** / 25 % of the cores during the samples\n"), "{text}");
    }

    #[test]
    fn a_report_is_read_back() -> serde_json::Result<()> {
        let text = serde_json::to_string(&example())?;
        let again: BenchReport = serde_json::from_str(&text)?;
        assert_eq!(markdown(&again), markdown(&example()));
        Ok(())
    }
}
