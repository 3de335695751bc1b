//! Resources that a server holds: its own gauges, and the memory of its process.

use crate::serving::http::Site;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Gauges of `/metrics` that must return to their initial values when the server is idle.
pub const RESOURCE_GAUGES: [&str; 6] = [
    "gristmill_requests_running",
    "gristmill_requests_waiting",
    "gristmill_connections",
    "gristmill_cache_tokens",
    "gristmill_cache_pages_used",
    "gristmill_cache_pages_leaked",
];
/// Further counters for the report.
const REPORTED_GAUGES: [&str; 5] = [
    "gristmill_cache_pages",
    "gristmill_prefix_cache_bytes",
    "gristmill_requests_preempted_total",
    "gristmill_requests_abandoned_total",
    "gristmill_prompt_tokens_cached_total",
];
/// Interval between checks whether the server is idle.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of a `/metrics` request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between memory samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum number of memory samples for a statement about growth.
const MIN_SAMPLES: usize = 20;

/// Counters by name, summed over models; counters that the server lacks are absent.
pub type Counters = BTreeMap<&'static str, f64>;

/// Reads the counters from `/metrics`.
///
/// # Errors
/// If the server does not answer.
pub fn counters(site: &Site) -> Result<Counters> {
    let text = site.fetch("/metrics", None, REQUEST_TIMEOUT)?;
    Ok(RESOURCE_GAUGES
        .into_iter()
        .chain(REPORTED_GAUGES)
        .filter_map(|name| Some((name, sum(&text, name)?)))
        .collect())
}

/// Reads the counters before the load, after the connections of the readiness check have closed.
///
/// # Errors
/// If the server does not answer.
pub fn at_first(site: &Site) -> Result<Counters> {
    std::thread::sleep(POLL_INTERVAL);
    counters(site)
}

/// Sums a counter over its labels; `None` if it is absent.
fn sum(text: &str, name: &str) -> Option<f64> {
    let mut values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = if rest.starts_with('{') {
            rest.rsplit_once('}')?.1
        } else {
            rest
        };
        value
            .strip_prefix(' ')?
            .split(' ')
            .next()?
            .parse::<f64>()
            .ok()
    });
    let first = values.next()?;
    Some(first + values.sum::<f64>())
}

/// Waits until all gauges are back at their initial values, at most `limit`; returns the counters.
///
/// # Errors
/// If the server does not answer any more.
pub fn until_idle(site: &Site, before: &Counters, limit: Duration) -> Result<Counters> {
    let begun = Instant::now();
    loop {
        let now = counters(site)?;
        if RESOURCE_GAUGES
            .iter()
            .all(|name| now.get(name) <= before.get(name))
            || begun.elapsed() > limit
        {
            return Ok(now);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the resident set size of a process in bytes; `None` if it is unknown.
pub fn resident(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// Samples a process's memory until `over` is set, and passes every sample to `each`.
pub fn memory(
    process: Option<u32>,
    over: &AtomicBool,
    mut each: impl FnMut(Option<u64>),
) -> Vec<u64> {
    let mut samples = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let now = process.and_then(resident);
        samples.extend(now);
        each(now);
        std::thread::sleep(SAMPLE_INTERVAL);
    }
    samples
}

/// Resident memory early and late in a run.
#[derive(Serialize, Clone, Copy, PartialEq, Debug)]
pub struct Growth {
    /// Median over the second tenth of the run, in bytes; the first tenth is warm-up.
    pub early: u64,
    /// Median over the last tenth, in bytes.
    pub late: u64,
    /// Allowed growth in bytes.
    pub bound: u64,
}

impl Growth {
    /// Compares the ends of equidistant samples. The allowed growth is `bytes` or 5 %, whichever is
    /// more; `None` for too few samples.
    pub fn fit(samples: &[u64], bytes: u64) -> Option<Growth> {
        let tenth = samples.len() / 10;
        if samples.len() < MIN_SAMPLES {
            return None;
        }
        let median = |part: &[u64]| {
            let mut part = part.to_vec();
            part.sort_unstable();
            part[part.len() / 2]
        };
        let (early, late) = (
            median(&samples[tenth..2 * tenth]),
            median(&samples[samples.len() - tenth..]),
        );
        Some(Growth {
            early,
            late,
            bound: bytes.max(early / 20),
        })
    }
    /// Whether memory has grown by more than the bound.
    pub fn is_found(&self) -> bool {
        self.late > self.early + self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_models_and_no_other_s_name_is_taken_for_one() {
        let text = "# HELP a_b x\na_b 3\na_b_c{model=\"x\"} 7\na_bc 1\na_b{model=\"x y\"} 4 17\na_b{model=\"{} z\"} 0.5\n";
        assert_eq!(
            (sum(text, "a_b"), sum(text, "a_b_c"), sum(text, "a")),
            (Some(7.5), Some(7.0), None)
        );
    }

    #[test]
    fn memory_grows_where_the_end_of_a_run_has_more_than_its_beginning() {
        // Growth within the first tenth is ignored.
        let mut samples: Vec<u64> = (0..100).map(|at| if at < 10 { at } else { 1000 }).collect();
        assert_eq!(
            Growth::fit(&samples, 20),
            Some(Growth {
                early: 1000,
                late: 1000,
                bound: 50
            })
        );
        samples[92..].fill(1051);
        assert!(Growth::fit(&samples, 20).unwrap().is_found());
        assert!(!Growth::fit(&samples, 51).unwrap().is_found());
        assert_eq!(Growth::fit(&samples[..19], 20), None);
    }

    #[test]
    fn resident_memory_is_read_from_the_system() {
        let over = AtomicBool::new(false);
        let samples = memory(Some(std::process::id()), &over, |_| {
            over.store(true, Ordering::Relaxed)
        });
        assert!(samples.len() == 1 && samples[0] > 1 << 20, "{samples:?}");
    }
}
