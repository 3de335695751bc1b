//! `xtask conformance`: the long run of the conformance suite. Runs many perturbed schedules of
//! every case, and checks that every alternative of each kind of decision is taken.

mod processes;
mod results;

use crate::shell;
use anyhow::{Context, Result, bail};
use processes::{Job, JobResult, Run};
use results::TestResults;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Options {
    /// Perturbed schedules per case
    #[arg(long, default_value_t = 30)]
    perturb: u32,
    /// Run only cases with this text in their names
    #[arg(long)]
    case: Option<String>,
    /// Run only ways (instruction sets, seeds) with this text in their names: `avx512`, `avx2` or
    /// `plain` of cpu, `seed 7`
    #[arg(long)]
    way: Option<String>,
    /// Run only a shard of each test's cases: 2/3 is every third case, starting with the second
    #[arg(long, value_parser = part)]
    shard: Option<(usize, usize)>,
    /// Number of processes that each test's cases are split over
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    parts: u32,
    /// Concurrent processes [default: number of cores]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// Timeout of a process in seconds
    #[arg(long)]
    limit: Option<u64>,
    /// Time limit of the run in seconds; the next run continues where this one stopped
    #[arg(long)]
    within: Option<u64>,
    /// Discard the results of earlier runs of the same tests
    #[arg(long)]
    afresh: bool,
    /// Test executable to use instead of building one, for machines without Rust
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Folder for records of passed cases [default: target/conformance]
    #[arg(long)]
    record: Option<PathBuf>,
    /// Devices, or tests of a device: interp, linear, cpu, neon, threads (CUDA C on this CPU),
    /// cuda, cpu::attention [default: all devices but cuda]
    devices: Vec<String>,
}

/// Devices of the suite that every machine has.
const DEVICES: &[&str] = &["interp", "linear", "cpu", "neon", "threads"];

/// Parses a shard: `2/3` is the second of three.
fn part(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    parsed.filter(|(i, n)| (1..=*n).contains(i)).ok_or_else(|| "a part is written 2/3".to_owned())
}

/// Returns true if all tests passed and every alternative was taken.
pub fn run(options: &Options) -> Result<bool> {
    let start = Instant::now();
    let binary = match &options.binary {
        Some(binary) => binary.canonicalize().with_context(|| format!("cannot find {}", binary.display()))?,
        None => build(&shell::root()?, options)?,
    };
    let folder = folder(&binary, options)?;
    if options.afresh && folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    println!("what was right is kept in {}, and not run again", folder.display());

    let jobs = jobs(&binary, options)?;
    let mut environment = vec![("GRISTMILL_PERTURB", options.perturb.to_string())];
    environment.extend(options.case.iter().map(|case| ("GRISTMILL_CASE", case.clone())));
    environment.extend(options.way.iter().map(|way| ("GRISTMILL_WAY", way.clone())));
    let run = Run {
        binary: &binary,
        folder: &folder,
        environment,
        limit: options.limit.map(Duration::from_secs),
        until: options.within.map(|seconds| start + Duration::from_secs(seconds)),
    };
    let at_a_time = options.jobs.map(|n| n as usize);
    let at_a_time = at_a_time.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let ended = run.all(jobs, at_a_time)?;
    report(&TestResults::read(&folder)?, &ended)
}

/// Lists the selected tests, split into parts.
fn jobs(binary: &Path, options: &Options) -> Result<Vec<Job>> {
    let listed = shell::stdout(Command::new(binary).args(["--list", "--format", "terse"]))?;
    let asked = |test: &str| match options.devices.is_empty() {
        true => DEVICES.iter().any(|device| test.starts_with(&format!("{device}::"))),
        false => options
            .devices
            .iter()
            .any(|d| test.starts_with(d) && (d.contains("::") || test[d.len()..].starts_with("::"))),
    };
    let tests: Vec<&str> =
        listed.lines().filter_map(|line| line.strip_suffix(": test")).filter(|test| asked(test)).collect();
    let (own, of) = options.shard.unwrap_or((1, 1));
    let parts = options.parts as usize;
    let job = |test: &str, part: usize| Job { test: test.to_owned(), part: (own + of * part, of * parts) };
    // First parts come first, so that a run that is cut short has tried each test.
    Ok((0..parts).flat_map(|part| tests.iter().map(move |test| job(test, part))).collect())
}

/// Builds the conformance test and returns its executable.
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

/// Returns the folder of the records, named by a hash of the
/// executable and of the options that select schedules.
fn folder(binary: &Path, options: &Options) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?.hash(&mut hasher);
    (options.perturb, &options.case, &options.way, options.parts).hash(&mut hasher);
    let kept = match &options.record {
        Some(folder) => std::path::absolute(folder)?,
        None => shell::root()?.join("target").join("conformance"),
    };
    Ok(kept.join(format!("{:016x}", hasher.finish())))
}

/// Prints the results. Returns true if all jobs passed, no result is wrong, and no alternative that
/// was offered is missing.
fn report(found: &TestResults, ended: &[(Job, JobResult)]) -> Result<bool> {
    print!("{}", found.table());
    if found.is_empty() && ended.iter().all(|(_, how)| *how == JobResult::Passed) {
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
            "hint: every alternative that is offered must be tested: raise --perturb, or add a case that offers it more often"
        );
    }
    print!("{}", processes::table(ended));
    let passed = ended.iter().all(|(_, how)| *how == JobResult::Passed);
    Ok(passed && found.wrong.is_empty() && missing.is_empty())
}
