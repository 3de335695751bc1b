//! What the report says of the machine and the day.

use crate::benchmarks::report::Machine;
use anyhow::{Context, Result};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Extensions that decide which kernels either program has.
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

pub fn cores() -> Result<usize> {
    Ok(std::thread::available_parallelism().context("the number of cores is unknown\nhint: give --threads")?.get())
}

/// What the system says of itself; what it does not say stays empty.
pub fn describe(threads: usize) -> Result<Machine> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Ok(Machine {
        processor: field(&cpu, "model name").unwrap_or(std::env::consts::ARCH).to_owned(),
        features: features(field(&cpu, "flags").or(field(&cpu, "Features")).unwrap_or_default()),
        cores: cores()?,
        threads,
        memory_bytes: field(&memory, "MemTotal").and_then(kilobytes),
        read_bandwidth: None,
    })
}

fn features(flags: &str) -> Vec<String> {
    let has = |name: &&str| flags.split_whitespace().any(|flag| flag == *name);
    FEATURES.iter().copied().filter(has).map(str::to_owned).collect()
}

/// The value of the first line `name : value`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

fn kilobytes(value: &str) -> Option<u64> {
    value.strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The date in UTC, as in 2025-01-31.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date(seconds / 86_400)
}

/// The date so many days after 1970-01-01. Years are taken to begin in March, so that the leap day is their last.
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let days = [0, 59, 11_016, 11_017, 19_782, 20_453];
        let named = ["1970-01-01", "1970-03-01", "2000-02-29", "2000-03-01", "2024-02-29", "2025-12-31"];
        assert_eq!(days.map(date), named);
    }

    #[test]
    fn fields_of_the_system_files() {
        let text =
            "processor\t: 0\nmodel name\t: Some CPU @ 2: fast\nflags\t\t: fpu avx2 avx512f\nMemTotal:  1024 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2: fast"));
        assert_eq!(field(text, "model"), None);
        assert_eq!(features(field(text, "flags").unwrap()), ["avx2", "avx512f"]);
        assert_eq!(field(text, "MemTotal").and_then(kilobytes), Some(1 << 20));
        assert_eq!(kilobytes("many kB"), None);
    }
}
