//! Reports of soak runs: text table, JSON and findings.

use super::cases::SoakCase;
use super::load::{Completion, Outcome, Outcomes};
use super::watch::{Counters, Growth, RESOURCE_GAUGES};
use crate::machine::HostMachine;
use crate::serving::quantiles::Quantiles;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Maximum ratio of the longest wait to the median.
const MAX_UNFAIRNESS: f64 = 3.0;
/// Number of differing answers that are quoted.
const MAX_EXAMPLES: usize = 5;

/// Measurements and findings of a run.
#[derive(Serialize, Default)]
pub struct SoakReport {
    pub date: String,
    pub command: String,
    pub commit: String,
    pub machine: Option<HostMachine>,
    pub server: String,
    /// Whether [`SoakReport::wait`] is checked for fairness.
    pub fair: bool,
    pub requests: usize,
    pub clients: usize,
    pub answers: Answers,
    pub seconds: f64,
    /// Requests per second, disconnected and failed ones included.
    pub rate: f64,
    /// Time to first text of finished answers, in seconds.
    pub wait: LatencySpread,
    /// Other requests that got their first text during each
    /// wait; independent of the machine's load.
    pub others: LatencySpread,
    /// `None` for a server that was not started here, or a run that was too short.
    pub memory: Option<Growth>,
    pub before: Counters,
    pub after: Counters,
    pub findings: Vec<String>,
}

/// Outcomes of the requests, counted.
#[derive(Serialize, Default, PartialEq, Debug)]
pub struct Answers {
    pub finished: usize,
    /// Counts by moment of the disconnect.
    pub hung_up: BTreeMap<&'static str, usize>,
    /// Counts by error message.
    pub failed: BTreeMap<String, usize>,
    /// Finished answers that differ from the answer alone, and partial
    /// ones that are no prefix of it.
    pub different: usize,
    /// The first few differing answers.
    pub examples: Vec<Different>,
}

/// An answer that differs from the one given alone.
#[derive(Serialize, PartialEq, Debug)]
pub struct Different {
    pub prompt: usize,
    pub prompt_tokens: usize,
    pub drawn: bool,
    pub alone: String,
    pub among_others: String,
}

/// Quantiles and maximum of samples.
#[derive(Serialize, Default, Clone, Copy, PartialEq, Debug)]
pub struct LatencySpread {
    pub quantiles: Quantiles,
    pub longest: f64,
}

impl LatencySpread {
    pub fn from_samples(samples: Vec<f64>) -> LatencySpread {
        LatencySpread {
            longest: samples.iter().copied().fold(0.0, f64::max),
            quantiles: Quantiles::from_samples(samples),
        }
    }
    fn ratio(&self) -> f64 {
        if self.quantiles.p50 > 0.0 {
            self.longest / self.quantiles.p50
        } else {
            1.0
        }
    }
}

impl Answers {
    /// Compares outcomes with the answers that the cases received alone.
    pub fn new(outcomes: &Outcomes, cases: &[SoakCase], alone: &[Completion]) -> Answers {
        let mut all = Answers::default();
        for (nth, outcome) in outcomes {
            let expected = alone.get(*nth);
            match outcome {
                Outcome::Finished { answer, .. } => {
                    all.finished += 1;
                    if Some(answer) != expected {
                        all.differs(*nth, cases, expected, format!("{answer:?}"));
                    }
                }
                Outcome::HungUp { moment, text } => {
                    *all.hung_up.entry(moment.name()).or_default() += 1;
                    if expected.is_none_or(|expected| !expected.text.starts_with(text)) {
                        all.differs(
                            *nth,
                            cases,
                            expected,
                            format!("{text:?}, of which more was to come"),
                        );
                    }
                }
                Outcome::Failed(error) => *all.failed.entry(error.clone()).or_default() += 1,
            }
        }
        all
    }
    fn differs(
        &mut self,
        nth: usize,
        cases: &[SoakCase],
        alone: Option<&Completion>,
        among_others: String,
    ) {
        self.different += 1;
        if let (true, Some(case)) = (self.examples.len() < MAX_EXAMPLES, cases.get(nth)) {
            let alone = alone.map_or_else(|| "nothing".into(), |alone| format!("{alone:?}"));
            let SoakCase {
                prompt_tokens,
                drawn,
                ..
            } = *case;
            self.examples.push(Different {
                prompt: nth,
                prompt_tokens,
                drawn,
                alone,
                among_others,
            });
        }
    }
    fn failures(&self) -> usize {
        self.failed.values().sum()
    }
    fn left(&self) -> usize {
        self.hung_up.values().sum()
    }
}

impl SoakReport {
    /// Adds a finding for every violated invariant.
    pub fn find(&mut self, started: bool) {
        let mut found = Vec::new();
        let SoakReport {
            answers,
            wait,
            others,
            ..
        } = self;
        for (error, count) in &answers.failed {
            found.push(format!("{count} requests failed: {error}"));
        }
        let done = answers.finished + answers.left() + answers.failures();
        if done < self.requests {
            found.push(format!(
                "{} requests were not sent: too many had failed",
                self.requests - done
            ));
        }
        if answers.different > 0 {
            found.push(format!(
                "{} answers are not the ones given alone",
                answers.different
            ));
        }
        for example in &answers.examples {
            let Different {
                prompt,
                prompt_tokens,
                drawn,
                alone,
                among_others,
            } = example;
            let kind = if *drawn {
                "with a seed"
            } else {
                "temperature 0"
            };
            found.push(format!(
                "prompt {prompt} ({prompt_tokens} tokens, {kind}): alone {alone}, among others {among_others}"
            ));
        }
        for name in RESOURCE_GAUGES {
            match (self.before.get(name), self.after.get(name)) {
                (Some(before), Some(after)) if after > before => {
                    found.push(format!(
                        "{name} is {after} though nobody asks, and was {before}"
                    ));
                }
                (Some(_), Some(_)) => {}
                _ => found.push(format!(
                    "/metrics does not tell {name}: nothing is known of it"
                )),
            }
        }
        match &self.memory {
            Some(growth) if growth.is_found() => {
                found.push(format!("memory grows: {}", show_memory(growth)))
            }
            None if started => found.push(
                "too few samples of memory to say whether it grows: send more --requests".into(),
            ),
            _ => {}
        }
        if self.fair && wait.ratio() > MAX_UNFAIRNESS {
            found.push(format!(
                "the longest wait of {:.3} s is {:.1} times the median of {:.3} s, and may be {MAX_UNFAIRNESS} times; while somebody waited {} others were answered at most, by the median {}: where these are near, \
                 it was the machine that was slow at times",
                wait.longest,
                wait.ratio(),
                wait.quantiles.p50,
                others.longest,
                others.quantiles.p50
            ));
        }
        self.findings.append(&mut found);
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn show_memory(growth: &Growth) -> String {
    let Growth { early, late, bound } = *growth;
    let more = mib(late) - mib(early);
    format!(
        "{:.1} MiB in the second tenth of the run, {:.1} in the last: {more:+.1}, of which {:.1} may be",
        mib(early),
        mib(late),
        mib(bound)
    )
}

/// Formats how many clients disconnected at each moment of a request.
fn moments(answers: &Answers) -> String {
    let moments: Vec<String> = answers
        .hung_up
        .iter()
        .map(|(moment, count)| format!("{count} {moment}"))
        .collect();
    moments.join(", ")
}

/// Formats the longest wait, and whether it is fair.
fn fairness(report: &SoakReport) -> String {
    let wait = &report.wait;
    let longest = format!(
        "longest {:.3}, {:.1} times the median",
        wait.longest,
        wait.ratio()
    );
    match (wait.ratio() <= MAX_UNFAIRNESS, report.fair) {
        (true, _) => format!("{longest}: fair"),
        (false, true) => format!("{longest}: NOT fair"),
        (false, false) => format!("{longest} (with --fair at most {MAX_UNFAIRNESS})"),
    }
}

/// Formats the table, followed by the findings.
pub fn table(report: &SoakReport) -> String {
    let SoakReport {
        answers,
        wait,
        others,
        ..
    } = report;
    let quantiles = wait.quantiles;
    let told = |name: &str| {
        report
            .after
            .get(name)
            .map_or("not told".to_owned(), f64::to_string)
    };
    let memory = report
        .memory
        .as_ref()
        .map_or("not measured".to_owned(), show_memory);
    let moments = moments(answers);
    let fair = fairness(report);
    let rows = [
        (
            "requests",
            format!(
                "{} of {} clients, {:.1} s, {:.1} a second",
                report.requests, report.clients, report.seconds, report.rate
            ),
        ),
        (
            "finished",
            format!(
                "{}, {} of all differ from the answer alone",
                answers.finished, answers.different
            ),
        ),
        ("hung up", format!("{} ({moments})", answers.left())),
        ("failed", answers.failures().to_string()),
        (
            "wait s",
            format!(
                "p50 {:.3}, p90 {:.3}, p99 {:.3}, {fair}",
                quantiles.p50, quantiles.p90, quantiles.p99
            ),
        ),
        (
            "others",
            format!(
                "answered while one waits: p50 {}, p99 {}, most {}",
                others.quantiles.p50, others.quantiles.p99, others.longest
            ),
        ),
        ("memory", memory),
        (
            "pages",
            format!(
                "of {} used {}, leaked {}; given up for others {} times",
                told("gristmill_cache_pages"),
                told("gristmill_cache_pages_used"),
                told("gristmill_cache_pages_leaked"),
                told("gristmill_requests_preempted_total"),
            ),
        ),
    ];
    let mut out = format!("{}\n", report.server);
    for (name, row) in rows {
        // Writing to a String does not fail.
        let _ = writeln!(out, "  {name:<9} {row}");
    }
    for finding in &report.findings {
        let _ = writeln!(out, "finding: {finding}");
    }
    out
}
