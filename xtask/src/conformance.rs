//! `xtask conformance`: the long run of the conformance suite. Many perturbed schedules of every case, and each alternative of every kind of decision taken.

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
    #[arg(long, value_parser = part)]
    shard: Option<(usize, usize)>,
    /// Processes for each test, each with its part of the cases
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    parts: u32,
    /// Processes at a time; as many as there are cores unless said
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// Seconds that a process may take before it is ended
    #[arg(long)]
    limit: Option<u64>,
    /// Seconds after which the run is ended, with a report of what was found; the next one goes on there
    #[arg(long)]
    within: Option<u64>,
    /// Runs again what an earlier run of the same tests found right
    #[arg(long)]
    afresh: bool,
    /// The executable of the tests, instead of building it: where there is no Rust
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where what was right is kept; target/conformance unless said
    #[arg(long)]
    record: Option<PathBuf>,
    /// Devices, or tests of one: interp, linear, cpu, neon, threads (CUDA C on this processor), cuda, cpu::attention; all but cuda unless said
    devices: Vec<String>,
}

/// Devices of the suite that every machine has.
const DEVICES: &[&str] = &["interp", "linear", "cpu", "neon", "threads"];

/// 2/3: the second of three.
fn part(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    parsed.filter(|(i, n)| (1..=*n).contains(i)).ok_or_else(|| "a part is written 2/3".to_owned())
}

/// True if all tests passed and no alternative was left out.
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

/// The tests that are asked for, in parts.
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
    // First the first part of every test: where a run is ended, each has been tried.
    Ok((0..parts).flat_map(|part| tests.iter().map(move |test| job(test, part))).collect())
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

/// Where what was found is kept: other tests, other numbers of schedules, other choices and other parts have other folders.
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

/// Prints what was found; true if nothing is wrong, nothing was left out, and everything has come to its end.
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
            "hint: an alternative that is offered must be right; more schedules (--perturb) find it, or no case offers it often enough"
        );
    }
    print!("{}", processes::table(ended));
    let passed = ended.iter().all(|(_, how)| *how == JobResult::Passed);
    Ok(passed && found.wrong.is_empty() && missing.is_empty())
}
