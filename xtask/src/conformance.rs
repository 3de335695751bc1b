//! `xtask conformance`: the long run of the conformance suite. Many perturbed schedules of every case, and each alternative of every kind of decision taken.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;

#[derive(clap::Args)]
pub struct Options {
    /// Perturbed schedules of each case
    #[arg(long, default_value_t = 30)]
    perturb: u32,
    /// Only cases whose names contain this
    #[arg(long)]
    case: Option<String>,
    /// Devices, or tests of one: interp, linear, cpu, neon, threads (CUDA C on this processor), cuda, cpu::attention; all but cuda unless said
    devices: Vec<String>,
}

/// Devices of the suite that every machine has.
const DEVICES: &[&str] = &["interp", "linear", "cpu", "neon", "threads"];

/// Offered and taken, by target, kind of decision and alternative.
type Counts = BTreeMap<(String, String, String), [u64; 2]>;

/// True if all tests passed and no alternative was left out.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    let folder = root.join("target").join("conformance");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let file = folder.join(format!("decisions-{}.tsv", std::process::id()));
    fs::write(&file, "").with_context(|| format!("cannot write {}", file.display()))?;

    let mut test = shell::cargo(&root);
    test.args(["test", "-p", "gristmill-tensor", "--test", "conformance", "--no-fail-fast"]);
    if options.devices.iter().any(|device| device.starts_with("cuda")) {
        test.args(["--features", "cuda-tests"]);
    }
    test.arg("--");
    match options.devices.is_empty() {
        true => test.args(DEVICES.iter().map(|device| format!("{device}::"))),
        false => test.args(options.devices.iter().map(|d| if d.contains("::") { d.clone() } else { format!("{d}::") })),
    };
    test.env("GRISTMILL_PERTURB", options.perturb.to_string()).env("GRISTMILL_DECISIONS", &file);
    if let Some(case) = &options.case {
        test.env("GRISTMILL_CASE", case);
    }
    let passed = test.status()?.success();

    let counts = parse(&fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?)?;
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    print!("{}", table(&counts));
    if counts.is_empty() {
        bail!("nothing was decided: is there such a device or case?");
    }
    let missing = never(&counts);
    for (target, kind, alternative) in &missing {
        eprintln!("never taken on {target}: {kind}, {alternative}");
    }
    if !missing.is_empty() {
        eprintln!(
            "hint: an alternative that is offered must be right; more schedules (--perturb) find it, or no case offers it often enough"
        );
    }
    Ok(passed && missing.is_empty())
}

/// Sums of the lines that the suite writes (`tensor/tests/conformance/tally.rs`).
fn parse(text: &str) -> Result<Counts> {
    let mut counts = Counts::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [target, kind, alternative, offered, taken] = fields[..] else { bail!("no line of decisions: {line}") };
        let count = counts.entry((target.into(), kind.into(), alternative.into())).or_default();
        count[0] += offered.parse::<u64>().with_context(|| format!("no line of decisions: {line}"))?;
        count[1] += taken.parse::<u64>().with_context(|| format!("no line of decisions: {line}"))?;
    }
    Ok(counts)
}

/// Those that were offered and never taken.
fn never(counts: &Counts) -> Vec<&(String, String, String)> {
    counts.iter().filter(|(_, [_, taken])| *taken == 0).map(|(key, _)| key).collect()
}

fn table(counts: &Counts) -> String {
    let mut out =
        format!("{:<20} {:<10} {:<24} {:>10} {:>10}\n", "target", "decision", "alternative", "offered", "taken");
    for ((target, kind, alternative), [offered, taken]) in counts {
        out += &format!("{target:<20} {kind:<10} {alternative:<24} {offered:>10} {taken:>10}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_taken_is_found() {
        let text =
            "cpu\tplace\tfuse\t3\t1\ncpu\tplace\tbuffer\t3\t0\ngpu\tplace\tbuffer\t2\t2\ncpu\tplace\tfuse\t4\t4\n";
        let counts = parse(text).unwrap();
        assert_eq!(never(&counts), [&("cpu".to_owned(), "place".to_owned(), "buffer".to_owned())]);
        assert_eq!(counts[&("cpu".to_owned(), "place".to_owned(), "fuse".to_owned())], [7, 5]);
        assert!(table(&counts).lines().count() == 4);
        assert!(parse("cpu\tplace\tfuse\t3").is_err() && parse("cpu\tplace\tfuse\tx\t1").is_err());
    }
}
