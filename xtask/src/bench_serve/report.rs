//! Reports of load runs: text table, Markdown and JSON.

use super::load::{Pace, ServeOutcomes};
use crate::machine::HostMachine;
use crate::serving::quantiles::Quantiles;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// All runs of one invocation.
#[derive(Serialize, Deserialize)]
pub struct ServeReport {
    pub date: String,
    pub command: String,
    /// Commit of this checkout.
    pub commit: String,
    pub machine: HostMachine,
    /// Free text given with --about: model, device, builds of the other servers.
    #[serde(default)]
    pub about: String,
    pub rows: Vec<ServeRow>,
}

/// Results of one run of one server.
#[derive(Serialize, Deserialize)]
pub struct ServeRow {
    pub server: String,
    pub pace: String,
    pub round: u16,
    pub requests: usize,
    /// Error messages with their counts.
    pub errors: BTreeMap<String, usize>,
    pub seconds: f64,
    pub prompt_tokens: usize,
    pub answer_tokens: usize,
    /// Prompt tokens per second over all requests, prefix hits included.
    pub prompt_rate: f64,
    /// Output tokens per second over all requests.
    pub answer_rate: f64,
    /// Time to first text (TTFT), in seconds.
    pub first: Quantiles,
    /// Mean time per output token after the first (TPOT), per request, in seconds.
    pub token: Quantiles,
    /// Seconds between chunks of a stream; a chunk may hold several tokens.
    pub gap: Quantiles,
    /// Total duration of a request, in seconds.
    pub whole: Quantiles,
    /// One-minute load average of this machine at the end of the run.
    pub load_average: Option<f64>,
}

impl ServeRow {
    pub fn new(server: &str, pace: Pace, round: u16, outcomes: ServeOutcomes) -> ServeRow {
        let ServeOutcomes { each, seconds } = outcomes;
        let mut errors = BTreeMap::new();
        for error in each.iter().filter_map(|outcome| outcome.as_ref().err()) {
            *errors.entry(error.clone()).or_default() += 1;
        }
        let good: Vec<_> = each.iter().flatten().collect();
        let sum = |of: fn(&super::load::Answered) -> usize| good.iter().map(|answer| of(answer)).sum::<usize>();
        let (prompt_tokens, answer_tokens) = (sum(|a| a.prompt_tokens), sum(|a| a.answer_tokens));
        let rate = |tokens: usize| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        let several = good.iter().filter(|answer| answer.answer_tokens > 1);
        let token = several.map(|a| a.gaps.iter().sum::<f64>() / (a.answer_tokens - 1) as f64).collect();
        ServeRow {
            server: server.to_owned(),
            pace: pace.to_string(),
            round,
            requests: each.len(),
            errors,
            seconds,
            prompt_tokens,
            answer_tokens,
            prompt_rate: rate(prompt_tokens),
            answer_rate: rate(answer_tokens),
            first: Quantiles::from_samples(good.iter().map(|a| a.first).collect()),
            token: Quantiles::from_samples(token),
            gap: Quantiles::from_samples(good.iter().flat_map(|a| a.gaps.iter().copied()).collect()),
            whole: Quantiles::from_samples(good.iter().map(|a| a.whole).collect()),
            load_average: std::fs::read_to_string("/proc/loadavg").ok().and_then(|t| t.split(' ').next()?.parse().ok()),
        }
    }
}

/// Formats a table of all rows, followed by error counts.
pub fn table(report: &ServeReport) -> String {
    let head =
        ["server", "pace", "requests", "errors", "in t/s", "out t/s", "first ms", "token ms", "gap ms", "whole ms"];
    let mut lines = vec![head.map(str::to_owned)];
    for row in &report.rows {
        let errors: usize = row.errors.values().sum();
        lines.push([
            row.server.clone(),
            row.pace.clone(),
            row.requests.to_string(),
            errors.to_string(),
            format!("{:.1}", row.prompt_rate),
            format!("{:.1}", row.answer_rate),
            row.first.show(),
            row.token.show(),
            row.gap.show(),
            row.whole.show(),
        ]);
    }
    let widths: Vec<usize> =
        (0..head.len()).map(|at| lines.iter().map(|line| line[at].len()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for line in &lines {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        // Writing to a String does not fail.
        let _ = writeln!(out, "{}", cells.join("  ").trim_end());
    }
    let _ = writeln!(out, "(times are of p50, p90 and p99)");
    for row in &report.rows {
        for (error, count) in &row.errors {
            let _ = writeln!(out, "{}, {}: {count} × {error}", row.server, row.pace);
        }
    }
    out
}

/// Formats the report as Markdown, one row per run.
pub fn markdown(report: &ServeReport) -> String {
    let ServeReport { date, command, commit, machine, about, rows } = report;
    let mut out = format!("- Machine: {machine}\n");
    if !about.is_empty() {
        out += &format!("- {about}\n");
    }
    out += &format!("- Gristmill: {commit}\n- Date: {date}\n- Command: `{command}`\n\n");
    out += "| server | pace | round | requests | errors | prefill tok/s | decode tok/s | TTFT ms | TPOT ms | gap ms | request ms |\n";
    out += "|---|---|---:|---:|---:|---:|---:|---|---|---|---|\n";
    for row in rows {
        let errors: usize = row.errors.values().sum();
        let times = [row.first, row.token, row.gap, row.whole].map(|q| q.show().replace(' ', " / ")).join(" | ");
        let ServeRow { server, pace, round, requests, prompt_rate, answer_rate, .. } = row;
        out += &format!(
            "| {server} | {pace} | {round} | {requests} | {errors} | {prompt_rate:.0} | {answer_rate:.0} | {times} |\n"
        );
    }
    out
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bench_serve::load::Answered;

    /// Makes a report with one row of three requests, one of which failed.
    pub fn example() -> ServeReport {
        let answered = Answered { prompt_tokens: 10, answer_tokens: 5, first: 0.5, gaps: vec![0.1, 0.3], whole: 0.9 };
        let each =
            vec![Ok(answered.clone()), Err("no".into()), Ok(Answered { answer_tokens: 1, gaps: vec![], ..answered })];
        ServeReport {
            date: "2000-01-01".into(),
            command: "cargo xtask bench-serve".into(),
            commit: "0".into(),
            machine: crate::machine::describe(1).unwrap(),
            about: "A model on a card".into(),
            rows: vec![ServeRow::new("ours", Pace::Clients(2), 1, ServeOutcomes { each, seconds: 2.0 })],
        }
    }

    #[test]
    fn a_row_counts_what_was_answered_and_what_was_not() {
        let report = example();
        let row = &report.rows[0];
        assert_eq!((row.requests, row.errors["no"], row.prompt_rate, row.answer_rate), (3, 1, 10.0, 3.0));
        // Four tokens after the first in 0.4 s; the other answer has a single token.
        assert!((row.token.p99 - 0.1).abs() < 1e-12 && (row.gap.p99 - 0.3).abs() < 1e-12);
        let table = table(&report);
        assert!(
            table.contains("2 clients  3         1       10.0") && table.contains("ours, 2 clients: 1 × no"),
            "{table}"
        );
        let markdown = markdown(&report);
        assert!(markdown.contains("- A model on a card\n"), "{markdown}");
        assert!(markdown.contains("| ours | 2 clients | 1 | 3 | 1 | 10 | 3 | 500 / 500 / 500 |"), "{markdown}");
    }
}
