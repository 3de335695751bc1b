//! Machine description, CPU usage and date for benchmark reports.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// CPU features that select kernels in gristmill or llama.cpp.
const FEATURES: &[&str] = &[
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
];

/// Host machine, as recorded in a report.
#[derive(Serialize, Deserialize)]
pub struct HostMachine {
    pub processor: String,
    /// CPU features that select kernels in gristmill or llama.cpp.
    pub features: Vec<String>,
    pub cores: usize,
    /// Threads used by both programs.
    pub threads: usize,
    pub memory_bytes: Option<u64>,
    /// Read bandwidth of these threads together, in bytes/s; the maximum over all samples.
    pub read_bandwidth: Option<f64>,
}

impl fmt::Display for HostMachine {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}, {} cores", self.processor, self.cores)?;
        if let Some(bytes) = self.memory_bytes {
            write!(f, ", {:.0} GiB", bytes as f64 / (1u64 << 30) as f64)?;
        }
        if let Some(bandwidth) = self.read_bandwidth {
            write!(
                f,
                ", reads {:.1} GB/s with {} threads",
                bandwidth / 1e9,
                self.threads
            )?;
        }
        write!(f, "; {}", self.features.join(" "))
    }
}

pub fn cores() -> Result<usize> {
    Ok(std::thread::available_parallelism()
        .context("the number of cores is unknown\nhint: give --threads")?
        .get())
}

/// Reads the machine description from `/proc`; unknown fields stay empty.
pub fn describe(threads: usize) -> Result<HostMachine> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Ok(HostMachine {
        processor: field(&cpu, "model name")
            .unwrap_or(std::env::consts::ARCH)
            .to_owned(),
        features: features(
            field(&cpu, "flags")
                .or(field(&cpu, "Features"))
                .unwrap_or_default(),
        ),
        cores: cores()?,
        threads,
        memory_bytes: field(&memory, "MemTotal").and_then(kilobytes),
        read_bandwidth: None,
    })
}

fn features(flags: &str) -> Vec<String> {
    let has = |name: &&str| flags.split_whitespace().any(|flag| flag == *name);
    FEATURES
        .iter()
        .copied()
        .filter(has)
        .map(str::to_owned)
        .collect()
}

/// Returns the value of the first `name : value` line.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

fn kilobytes(value: &str) -> Option<u64> {
    value
        .strip_suffix(" kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// CPU time counters of the cores in this process's affinity mask (`taskset`), in ticks.
#[derive(Clone, Copy)]
pub struct Ticks {
    /// Total over these cores, idle time included.
    all: u64,
    idle: u64,
    /// CPU time of this process's terminated children.
    children: u64,
}

impl Ticks {
    /// Reads the counters from `/proc`; `None` where they are unavailable.
    pub fn now() -> Option<Ticks> {
        let all = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        let status = fs::read_to_string("/proc/self/status").ok()?;
        Ticks::parse(&all, &own, field(&status, "Cpus_allowed_list")?)
    }

    fn parse(all: &str, own: &str, allowed: &str) -> Option<Ticks> {
        // The terminal's number is -1 for a process without a terminal.
        let number = |word: &str| word.trim_start_matches('-').parse().ok();
        let numbers = |words: &str| {
            words
                .split_whitespace()
                .map_while(number)
                .collect::<Vec<u64>>()
        };
        // Fields: user nice system idle iowait irq softirq steal. The guest fields after them are
        // already counted in user and nice.
        let lines = all
            .lines()
            .filter_map(|line| line.strip_prefix("cpu")?.split_once(' '));
        let ours = lines.filter(|(core, _)| core.parse().is_ok_and(|core| lists(allowed, core)));
        let cores = ours
            .map(|(_, words)| numbers(words))
            .reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a + b).collect())?;
        // The process name, in parentheses, may contain spaces. State and numbers follow; the 13th
        // and 14th numbers are cutime and cstime.
        let children = numbers(own.rsplit_once(')')?.1.trim_start().split_once(' ')?.1);
        Some(Ticks {
            all: cores.get(..8)?.iter().sum(),
            idle: cores[3] + cores[4],
            children: children.get(12)? + children.get(13)?,
        })
    }

    /// Returns the share of these cores' time that other programs used since `self`.
    pub fn others(self, now: Ticks) -> f64 {
        let (all, idle) = (now.all - self.all, now.idle.saturating_sub(self.idle));
        let busy = all.saturating_sub(idle + (now.children - self.children));
        busy as f64 / all.max(1) as f64
    }
}

/// Whether a CPU list such as `0-3,8` contains `core`.
fn lists(allowed: &str, core: usize) -> bool {
    allowed.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse().is_ok_and(|first: usize| first <= core)
            && last.parse().is_ok_and(|last: usize| core <= last)
    })
}

/// Returns today's date in UTC, as `YYYY-MM-DD`.
pub fn today() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    date(seconds / 86_400)
}

/// Converts days since 1970-01-01 to a date. Years begin in March, so that the leap day comes last.
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_load_excludes_idle_and_own_time() {
        let own = |c: u64| format!("7 (a ) b) S 1 2 3 4 -1 6 7 8 9 10 500 600 {c} {c} 20 0");
        let ticks = |zero: &str, two: &str, c| {
            let all = format!(
                "cpu  9 9 9 9 9 9 9 9\ncpu0 {zero} 9 9\ncpu1 7 7 7 7 7 7 7 7\ncpu2 {two}\nintr 5\n"
            );
            Ticks::parse(&all, &own(c), "0,2-3").unwrap()
        };
        let before = ticks("100 0 50 800 50 0 0 0", "0 0 0 0 0 0 0 0", 10);
        let after = ticks("300 0 150 1000 150 0 0 0", "200 0 0 200 0 0 0 0", 110);
        // 1000 more ticks, of which 500 are idle and 200 belong to children.
        assert_eq!(before.others(after), 0.3);
        assert!(Ticks::parse("cpu0 1 2\n", &own(1), "0").is_none());
        assert!(Ticks::parse("cpu0 1 2 3 4 5 6 7 8\n", &own(1), "1").is_none());
        assert!(Ticks::parse("", "", "").is_none());
    }

    #[test]
    fn dates() {
        let days = [0, 59, 11_016, 11_017, 19_782, 20_453];
        let named = [
            "1970-01-01",
            "1970-03-01",
            "2000-02-29",
            "2000-03-01",
            "2024-02-29",
            "2025-12-31",
        ];
        assert_eq!(days.map(date), named);
    }

    #[test]
    fn fields_of_the_system_files() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2: fast\nflags\t\t: fpu avx2 avx512f\nMemTotal:  1024 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2: fast"));
        assert_eq!(field(text, "model"), None);
        assert_eq!(features(field(text, "flags").unwrap()), ["avx2", "avx512f"]);
        assert_eq!(field(text, "MemTotal").and_then(kilobytes), Some(1 << 20));
        assert_eq!(kilobytes("many kB"), None);
    }
}
