//! Runs each test, or each part of its cases, in a process of its own, several at a time and with a
//! timeout. A kernel that crashes ends only its process; the schedule
//! is recorded, and the test continues without it.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval between checks of a process.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Crashing schedules after which a test is abandoned.
const MAX_CRASHES: usize = 20;

/// A test, and the part of its cases: index from 1, and number of parts.
pub struct Job {
    pub test: String,
    pub part: (usize, usize),
}

impl Job {
    fn name(&self) -> String {
        match self.part {
            (_, 1) => self.test.clone(),
            (i, n) => format!("{}, {i}/{n}", self.test),
        }
    }
    /// Returns a file of the job, named as by `Record` in `tensor/tests/conformance/progress.rs`.
    fn file(&self, folder: &Path, extension: &str) -> PathBuf {
        let (i, n) = self.part;
        let part = if n == 1 { String::new() } else { format!("@{i}of{n}") };
        folder.join(format!("{}{part}.{extension}", self.test.replace("::", "-")))
    }
}

/// Final state of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobResult {
    Passed,
    /// A required tool is missing.
    Skipped,
    Failed,
    /// A schedule crashed its process.
    Crashed,
    /// The process exceeded its time limit.
    TimedOut,
    /// The run ended before the job was done.
    Left,
}

/// Names of the results, in the order of the table.
const RESULT_NAMES: [(JobResult, &str); 6] = [
    (JobResult::Passed, "passed"),
    (JobResult::Skipped, "skipped"),
    (JobResult::Failed, "failed"),
    (JobResult::Crashed, "crashed"),
    (JobResult::TimedOut, "timed out"),
    (JobResult::Left, "left"),
];

/// Settings shared by all processes.
pub struct Run<'a> {
    pub binary: &'a Path,
    pub folder: &'a Path,
    pub environment: Vec<(&'static str, String)>,
    /// Time limit of one process.
    pub limit: Option<Duration>,
    /// Time when the run ends, even if jobs remain.
    pub until: Option<Instant>,
}

impl Run<'_> {
    /// Runs all jobs, `at_a_time` of them concurrently; returns their results in the same order.
    pub fn all(&self, jobs: Vec<Job>, at_a_time: usize) -> Result<Vec<(Job, JobResult)>> {
        let count = jobs.len();
        let queue: Mutex<VecDeque<(usize, Job)>> = Mutex::new(jobs.into_iter().enumerate().collect());
        let done: Mutex<Vec<(usize, Job, JobResult)>> = Mutex::new(Vec::new());
        let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let work = || -> Result<()> {
            while let Some((i, job)) = take() {
                let start = Instant::now();
                let how = self.job(&job)?;
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                if start.elapsed() > POLL_INTERVAL || how != JobResult::Left {
                    let (n, seconds) = (done.len() + 1, start.elapsed().as_secs_f64());
                    println!("[{n}/{count}] {}: {} after {seconds:.1} s", job.name(), how.name());
                }
                done.push((i, job, how));
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..at_a_time.min(count)).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|t| t.join().expect("a thread of the run"))
        })?;
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(i, ..)| *i);
        Ok(done.into_iter().map(|(_, job, how)| (job, how)).collect())
    }
    /// Runs one job, restarting it without each schedule that crashed.
    fn job(&self, job: &Job) -> Result<JobResult> {
        let (log, now) = (job.file(self.folder, "log"), job.file(self.folder, "now"));
        let mut crashes = 0;
        loop {
            if self.until.is_some_and(|until| Instant::now() >= until) {
                return Ok(JobResult::Left);
            }
            let mut child = self.start(job, &log)?;
            let status = match self.wait(&mut child)? {
                Ok(status) => status,
                Err(how) => return Ok(how),
            };
            let schedule = if status.success() { None } else { under_way(&now)? };
            match schedule {
                Some(schedule) => {
                    crashes += 1;
                    // The test reads this record and skips the schedule from now on.
                    let line = format!("fatal\t{}, {status}\n", schedule.trim_end());
                    OpenOptions::new()
                        .create(true)
                        .append(true)
                        .open(job.file(self.folder, "tsv"))?
                        .write_all(line.as_bytes())?;
                    if crashes == MAX_CRASHES {
                        return Ok(JobResult::Crashed);
                    }
                }
                None if !status.success() => return Ok(JobResult::Failed),
                None if crashes > 0 => return Ok(JobResult::Crashed),
                None if fs::read_to_string(&log)?.contains("skipped: conformance") => return Ok(JobResult::Skipped),
                None => return Ok(JobResult::Passed),
            }
        }
    }
    /// Starts the process of a job, with its output in a log file.
    fn start(&self, job: &Job, log: &Path) -> Result<Child> {
        if let Err(e) = fs::remove_file(job.file(self.folder, "now"))
            && e.kind() != io::ErrorKind::NotFound
        {
            return Err(e.into());
        }
        let mut test = Command::new(self.binary);
        test.args(["--exact", &job.test, "--nocapture", "--test-threads=1"]);
        test.env("GRISTMILL_RECORD", self.folder).envs(self.environment.iter().map(|(name, value)| (name, value)));
        if job.part.1 > 1 {
            test.env("GRISTMILL_SHARD", format!("{}/{}", job.part.0, job.part.1));
        }
        let log = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        test.stdout(log.try_clone()?).stderr(log);
        test.spawn().with_context(|| format!("cannot start {}", self.binary.display()))
    }
    /// Waits for the exit status; returns the reason if the process was killed.
    fn wait(&self, child: &mut Child) -> io::Result<Result<ExitStatus, JobResult>> {
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Ok(status));
            }
            let late = self.limit.is_some_and(|limit| start.elapsed() > limit);
            if late || self.until.is_some_and(|until| Instant::now() >= until) {
                child.kill()?;
                child.wait()?;
                return Ok(Err(if late { JobResult::TimedOut } else { JobResult::Left }));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Reads the schedule that a process was working on, and the operation, from its `now` file.
fn under_way(now: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(now) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

impl JobResult {
    fn name(self) -> &'static str {
        RESULT_NAMES.iter().find(|(how, _)| *how == self).expect("every end has a name").1
    }
}

/// Formats job counts by device and result, and lists the jobs that did not pass.
pub fn table(ended: &[(Job, JobResult)]) -> String {
    let mut counts: BTreeMap<&str, BTreeMap<JobResult, usize>> = BTreeMap::new();
    for (job, how) in ended {
        let device = job.test.split("::").next().unwrap_or_default();
        *counts.entry(device).or_default().entry(*how).or_default() += 1;
    }
    let mut out = format!("{:<10}", "device");
    RESULT_NAMES.iter().for_each(|(_, name)| out += &format!(" {name:>9}"));
    for (device, counts) in counts {
        out += &format!("\n{device:<10}");
        RESULT_NAMES
            .iter()
            .for_each(|(how, _)| out += &format!(" {:>9}", counts.get(how).copied().unwrap_or_default()));
    }
    out += "\n";
    for (end, name) in &RESULT_NAMES[1..] {
        let named: Vec<String> = ended.iter().filter(|(_, how)| how == end).map(|(job, _)| job.name()).collect();
        if !named.is_empty() {
            out += &format!("{name}: {}\n", named.join("; "));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Imitates the test executable: one schedule of
    /// `cpu::crash` crashes, and `cpu::slow` never ends.
    const TESTS: &str = r#"#!/bin/sh
file="$GRISTMILL_RECORD/$(echo $2 | sed s/::/-/)"
case $2 in
  cpu::crash) grep -q '^fatal.one / seed 3' "$file.tsv" && exit 0; echo 'one / seed 3	run' > "$file.now"; kill -SEGV $$ ;;
  cpu::wrong) exit 101 ;;
  cpu::slow) exec sleep 60 ;;
  neon::a) echo 'skipped: conformance of neon: no emulator' ;;
  threads::a) test "$GRISTMILL_SHARD$GRISTMILL_PERTURB" = 2/330 ;;
esac
"#;

    #[cfg(unix)]
    #[test]
    fn a_crash_ends_its_process_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("gristmill-processes-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let binary = folder.join("tests.sh");
        fs::write(&binary, TESTS).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let run = Run {
            binary: &binary,
            folder: &folder,
            environment: vec![("GRISTMILL_PERTURB", "30".into())],
            limit: Some(Duration::from_secs(2)),
            until: None,
        };
        let job = |test: &str, part| Job { test: test.into(), part };
        let names = ["cpu::right", "cpu::wrong", "cpu::crash", "cpu::slow", "neon::a"];
        let mut jobs: Vec<Job> = names.into_iter().map(|name| job(name, (1, 1))).collect();
        jobs.push(job("threads::a", (2, 3)));
        let ended = run.all(jobs, 3).unwrap();
        let how: Vec<JobResult> = ended.iter().map(|(_, how)| *how).collect();
        use JobResult::*;
        assert!(how == [Passed, Failed, Crashed, TimedOut, Skipped, Passed], "{}", table(&ended));
        let crash = fs::read_to_string(folder.join("cpu-crash.tsv")).unwrap();
        assert!(crash.starts_with("fatal\tone / seed 3\trun, signal: 11"), "{crash}");
        assert!(
            table(&ended)
                .ends_with("skipped: neon::a\nfailed: cpu::wrong\ncrashed: cpu::crash\ntimed out: cpu::slow\n")
        );
        let late = Run { until: Some(Instant::now()), ..run };
        assert!(late.all(vec![job("cpu::right", (1, 1))], 1).unwrap()[0].1 == Left);
        fs::remove_dir_all(folder).unwrap();
    }
}
