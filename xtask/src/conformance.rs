//! `xtask conformance`: the long run of the conformance suite. Many perturbed schedules of every case, and each alternative of every kind of decision taken.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(clap::Args)]
pub struct Options {
    /// Perturbed schedules of each case
    #[arg(long, default_value_t = 30)]
    perturb: u32,
    /// Only cases whose names contain this
    #[arg(long)]
    case: Option<String>,
    /// Only ways whose names contain this: `avx512`, `avx2` or `plain` of cpu, `seed 7`
    #[arg(long)]
    way: Option<String>,
    /// Only a part of each test's cases: 2/3 is every third, from the second on
    #[arg(long)]
    shard: Option<String>,
    /// Tests at a time; as many as there are cores unless said
    #[arg(long)]
    jobs: Option<usize>,
    /// Runs again what an earlier run of the same tests found right
    #[arg(long)]
    afresh: bool,
    /// Devices, or tests of one: interp, linear, cpu, neon, threads (CUDA C on this processor), cuda, cpu::attention; all but cuda unless said
    devices: Vec<String>,
}

/// Devices of the suite that every machine has.
const DEVICES: &[&str] = &["interp", "linear", "cpu", "neon", "threads"];

/// What the files of a run say (`tensor/tests/conformance/progress.rs`).
#[derive(Default)]
struct Found {
    /// By test: cases, schedules planned, schedules run and kernels, all of them distinct; milliseconds of truth, planning, compiling, running.
    tests: BTreeMap<String, ([u64; 4], [u64; 4])>,
    /// Offered and taken, by target, kind of decision and alternative.
    decided: BTreeMap<(String, String, String), [u64; 2]>,
    /// Test and message, with the way and its seed.
    wrong: Vec<(String, String)>,
}

/// True if all tests passed and no alternative was left out.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    let binary = build(&root, options)?;
    let folder = folder(&root, &binary, options)?;
    if options.afresh && folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    println!("what was right is kept in {}, and not run again", folder.display());

    let mut test = Command::new(&binary);
    test.current_dir(root.join("tensor"));
    match options.devices.is_empty() {
        true => test.args(DEVICES.iter().map(|device| format!("{device}::"))),
        false => test.args(options.devices.iter().map(|d| if d.contains("::") { d.clone() } else { format!("{d}::") })),
    };
    test.env("GRISTMILL_PERTURB", options.perturb.to_string()).env("GRISTMILL_RECORD", &folder);
    for (name, value) in
        [("GRISTMILL_CASE", &options.case), ("GRISTMILL_WAY", &options.way), ("GRISTMILL_SHARD", &options.shard)]
    {
        if let Some(value) = value {
            test.env(name, value);
        }
    }
    if let Some(jobs) = options.jobs {
        test.arg(format!("--test-threads={jobs}"));
    }
    let passed = test.status().with_context(|| format!("cannot start {}", binary.display()))?.success();
    report(&read(&folder)?, passed)
}

/// The test's executable, built if need be.
fn build(root: &Path, options: &Options) -> Result<PathBuf> {
    let mut build = shell::cargo(root);
    build.args(["test", "-p", "gristmill-tensor", "--test", "conformance", "--no-run", "--message-format=json"]);
    if options.devices.iter().any(|device| device.starts_with("cuda")) {
        build.args(["--features", "cuda-tests"]);
    }
    let out = build.stderr(Stdio::inherit()).output()?;
    let messages = String::from_utf8(out.stdout)?;
    let executable = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    executable.filter(|_| out.status.success()).context("the conformance suite was not built")
}

/// Where what was found is kept: other tests, other numbers of schedules and other choices have other folders.
fn folder(root: &Path, binary: &Path, options: &Options) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?.hash(&mut hasher);
    (options.perturb, &options.case, &options.way).hash(&mut hasher);
    Ok(root.join("target").join("conformance").join(format!("{:016x}", hasher.finish())))
}

fn read(folder: &Path) -> Result<Found> {
    let mut found = Found::default();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let test = path.file_stem().unwrap_or_default().to_string_lossy().replacen('-', "::", 1);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        found.add(&test, &text).with_context(|| format!("in {}", path.display()))?;
    }
    Ok(found)
}

impl Found {
    /// Adds what the file of one test says.
    fn add(&mut self, test: &str, text: &str) -> Result<()> {
        let number = |text: &str| text.parse::<u64>().with_context(|| format!("no number: {text}"));
        let (counts, times) = self.tests.entry(test.into()).or_default();
        for line in text.lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["case", _, planned, run, texts] => {
                    counts[0] += 1;
                    for (sum, text) in counts[1..].iter_mut().zip([planned, run, texts]) {
                        *sum += number(text)?;
                    }
                }
                ["time", truth, plan, compile, run] => {
                    for (sum, text) in times.iter_mut().zip([truth, plan, compile, run]) {
                        *sum += number(text)?;
                    }
                }
                ["decided", target, kind, alternative, offered, taken] => {
                    let key = (target.into(), kind.into(), alternative.into());
                    let count = self.decided.entry(key).or_default();
                    count[0] += number(offered)?;
                    count[1] += number(taken)?;
                }
                ["wrong", message] => self.wrong.push((test.into(), message.into())),
                _ => bail!("no line of a record: {line}"),
            }
        }
        Ok(())
    }
    /// Those that were offered and never taken.
    fn never(&self) -> Vec<&(String, String, String)> {
        self.decided.iter().filter(|(_, [_, taken])| *taken == 0).map(|(key, _)| key).collect()
    }
    fn table(&self) -> String {
        let mut out =
            format!("{:<20} {:<10} {:<24} {:>10} {:>10}\n", "target", "decision", "alternative", "offered", "taken");
        for ((target, kind, alternative), [offered, taken]) in &self.decided {
            out += &format!("{target:<20} {kind:<10} {alternative:<24} {offered:>10} {taken:>10}\n");
        }
        out += &format!("\n{:<34} {:>6} {:>9} {:>9} {:>9}", "test", "cases", "schedules", "distinct", "kernels");
        out += &format!(" {:>8} {:>8} {:>8} {:>8}\n", "truth s", "plan s", "C s", "run s");
        let mut all = ([0; 4], [0; 4]);
        let line = |name: &str, (counts, times): &([u64; 4], [u64; 4])| {
            let [cases, planned, run, texts] = counts;
            let [truth, plan, compile, ran] = times.map(|ms| ms as f64 / 1e3);
            let times = format!("{truth:>8.1} {plan:>8.1} {compile:>8.1} {ran:>8.1}");
            format!("{name:<34} {cases:>6} {planned:>9} {run:>9} {texts:>9} {times}\n")
        };
        for (test, of) in &self.tests {
            out += &line(test, of);
            all.0.iter_mut().zip(of.0).for_each(|(sum, n)| *sum += n);
            all.1.iter_mut().zip(of.1).for_each(|(sum, n)| *sum += n);
        }
        out + &line("all", &all)
    }
}

/// Prints what was found; true if nothing is wrong and nothing was left out.
fn report(found: &Found, passed: bool) -> Result<bool> {
    print!("{}", found.table());
    if found.tests.values().all(|(counts, _)| counts[0] == 0) && found.wrong.is_empty() {
        bail!("nothing ran: is there such a device, way or case?");
    }
    for (test, message) in &found.wrong {
        eprintln!("wrong in {test}: {message}");
    }
    if !found.wrong.is_empty() {
        eprintln!("hint: `cargo xtask conformance TEST --case CASE --way 'seed N'` runs one of them again");
    }
    let missing = found.never();
    for (target, kind, alternative) in &missing {
        eprintln!("never taken on {target}: {kind}, {alternative}");
    }
    if !missing.is_empty() {
        eprintln!(
            "hint: an alternative that is offered must be right; more schedules (--perturb) find it, or no case offers it often enough"
        );
    }
    Ok(passed && found.wrong.is_empty() && missing.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_taken_is_found() {
        let mut found = Found::default();
        found
            .add("cpu::a", "decided\tcpu\tplace\tfuse\t3\t1\ndecided\tcpu\tplace\tbuffer\t3\t0\ncase\tone\t9\t8\t7\n")
            .unwrap();
        found
            .add("cpu::b", "decided\tgpu\tplace\tbuffer\t2\t2\ndecided\tcpu\tplace\tfuse\t4\t4\ntime\t1\t2\t3\t4\n")
            .unwrap();
        assert_eq!(found.never(), [&("cpu".to_owned(), "place".to_owned(), "buffer".to_owned())]);
        assert_eq!(found.decided[&("cpu".to_owned(), "place".to_owned(), "fuse".to_owned())], [7, 5]);
        assert_eq!((found.tests["cpu::a"].0, found.tests["cpu::b"].1), ([1, 9, 8, 7], [1, 2, 3, 4]));
        assert!(
            found
                .table()
                .ends_with(&format!("{:>6} {:>9} {:>9} {:>9}      0.0      0.0      0.0      0.0\n", 1, 9, 8, 7))
        );
        found.add("cpu::a", "wrong\tone / interp, seed 3: element 1\n").unwrap();
        assert!(!report(&found, true).unwrap());
        assert!(
            found.add("x", "decided\tcpu\tplace\tfuse\t3").is_err() && found.add("x", "case\tone\tx\t1\t1").is_err()
        );
    }
}
