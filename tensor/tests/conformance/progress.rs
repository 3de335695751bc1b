//! Progress and results of a run, for `cargo xtask conformance`.
//!
//! `GRISTMILL_RECORD=FOLDER` writes a file there for each test, or for each shard of its cases.
//! Cases recorded as correct are not run again, nor are schedules that terminated the process. The
//! schedule in progress is named in a separate file (`.now`).

use gristmill_compiler::Decision;
use gristmill_compiler::decision::{Count, counts};
use std::collections::{BTreeMap, HashSet};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Counts of the plans for a case on one target.
pub struct Tally {
    target: String,
    decisions: BTreeMap<(&'static str, &'static str), Count>,
    /// Number of schedules, including duplicates.
    pub planned: usize,
    /// Number of distinct schedules.
    pub run: usize,
    /// Number of distinct kernels.
    pub texts: usize,
}

impl Tally {
    pub fn new(target: &str) -> Tally {
        Tally {
            target: target.into(),
            decisions: BTreeMap::new(),
            planned: 0,
            run: 0,
            texts: 0,
        }
    }
    /// Counts the decisions of a schedule with several options.
    pub fn decided<'a>(&mut self, decisions: impl IntoIterator<Item = &'a Decision>) {
        for (key, count) in counts(decisions.into_iter().filter(|d| d.options.len() > 1)) {
            let sum = self.decisions.entry(key).or_default();
            sum.offered += count.offered;
            sum.taken += count.taken;
        }
    }
    /// Lines of the form
    /// `decided <tab> target <tab> kind <tab> alternative <tab> offered <tab> taken`.
    fn lines(&self) -> String {
        let line = |((kind, alternative), Count { offered, taken }): (&(&str, &str), &Count)| {
            format!(
                "decided\t{}\t{kind}\t{alternative}\t{offered}\t{taken}\n",
                self.target
            )
        };
        self.decisions.iter().map(line).collect()
    }
}

/// A case that has run in all ways.
pub struct Finished {
    case: String,
    tallies: Vec<Tally>,
    /// Failures, each with its way and seed.
    pub wrong: Vec<String>,
}

impl Finished {
    pub fn new(case: &str) -> Finished {
        Finished {
            case: case.into(),
            tallies: Vec::new(),
            wrong: Vec::new(),
        }
    }
    pub fn add(&mut self, tally: Tally) {
        self.tallies.push(tally);
    }
    /// The line `case <tab> name <tab> planned <tab> run <tab> texts` and lines of decisions.
    ///
    /// For a failed case, its failures instead.
    fn lines(&self) -> String {
        if !self.wrong.is_empty() {
            return self
                .wrong
                .iter()
                .map(|e| format!("wrong\t{}\n", e.replace(['\n', '\t'], " ")))
                .collect();
        }
        let sum = |of: fn(&Tally) -> usize| self.tallies.iter().map(of).sum::<usize>();
        let (planned, run, texts) = (sum(|t| t.planned), sum(|t| t.run), sum(|t| t.texts));
        let decided: String = self.tallies.iter().map(Tally::lines).collect();
        format!("{decided}case\t{}\t{planned}\t{run}\t{texts}\n", self.case)
    }
}

/// Wall-clock time of some cases by stage.
#[derive(Default)]
pub struct Stages {
    pub truth: Duration,
    pub plan: Duration,
    pub compile: Duration,
    pub run: Duration,
}

/// The record file of the current thread's test.
pub struct Record {
    test: String,
    path: Option<PathBuf>,
    /// Cases recorded as correct, which are skipped.
    done: HashSet<String>,
    /// Schedules that terminated a process: `case / way`.
    fatal: HashSet<String>,
}

impl Record {
    /// Reads the existing record, and removes failures, which run again.
    pub fn open() -> io::Result<Record> {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let folder = std::env::var_os("GRISTMILL_RECORD").map(PathBuf::from);
        // Shards of a test run in parallel.
        let part =
            std::env::var("GRISTMILL_SHARD").map(|part| format!("@{}", part.replace('/', "of")));
        let name = test.replace("::", "-") + &part.unwrap_or_default() + ".tsv";
        let path = folder.map(|folder| folder.join(name));
        let (mut done, mut fatal) = (HashSet::new(), HashSet::new());
        if let Some(path) = &path {
            let text = match std::fs::read_to_string(path) {
                Ok(text) => text,
                Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
                Err(e) => return Err(e),
            };
            // A line without its end was being written when the process ended.
            let whole = text
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            let right: String = whole.filter(|line| !line.starts_with("wrong\t")).collect();
            let named = |kind: &str, line: &str| {
                Some(line.strip_prefix(kind)?.split('\t').next()?.to_owned())
            };
            done.extend(right.lines().filter_map(|line| named("case\t", line)));
            fatal.extend(right.lines().filter_map(|line| named("fatal\t", line)));
            std::fs::write(path, right)?;
        }
        let record = Record {
            test,
            path,
            done,
            fatal,
        };
        record.pauses()?;
        Ok(record)
    }
    /// True if the case is recorded as correct.
    pub fn has(&self, case: &str) -> bool {
        self.done.contains(case)
    }
    /// Records that a schedule begins; false if it terminated a process before and must be skipped.
    pub fn begins(&self, what: &str, schedule: &str) -> io::Result<bool> {
        let Some(path) = &self.path else {
            return Ok(true);
        };
        if self.fatal.contains(schedule) {
            return Ok(false);
        }
        std::fs::write(path.with_extension("now"), format!("{schedule}\t{what}\n"))?;
        Ok(true)
    }
    /// Records that no schedule is in progress.
    pub fn pauses(&self) -> io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        match std::fs::remove_file(path.with_extension("now")) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
    /// Appends the results of cases and prints progress past captured output; `left` cases remain.
    pub fn add(&self, finished: &[Finished], stages: &Stages, left: usize) -> io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let Stages {
            truth,
            plan,
            compile,
            run,
        } = stages;
        let [truth, plan, compile, run] = [truth, plan, compile, run].map(Duration::as_millis);
        let lines: String = finished.iter().map(Finished::lines).collect();
        let times = format!("time\t{truth}\t{plan}\t{compile}\t{run}\n");
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)?
            .write_all((lines + &times).as_bytes())?;
        let wrong: usize = finished.iter().map(|f| f.wrong.len()).sum();
        let said = format!(
            "{}: {} cases, {left} left, {wrong} wrong\n",
            self.test,
            finished.len()
        );
        io::stderr().write_all(said.as_bytes())
    }
}

#[test]
fn alternatives_are_counted() {
    use gristmill_compiler::decision::Alternative;
    let of = |kind, options: &[&'static str], chosen, asked| {
        let options = options
            .iter()
            .map(|name| Alternative::named(name, 1.0))
            .collect();
        Decision {
            chosen,
            asked,
            ..Decision::new(kind, "Reduce [2]".into(), options)
        }
    };
    let all = [
        of("place", &["buffer", "fuse"], 1, true),
        of("place", &["buffer", "fuse"], 1, true),
        of("merge", &["apart", "together"], 0, true),
        of("workgroup", &["alone"], 0, true),
        of("kept", &["buffer", "fuse"], 0, false),
    ];
    let expected = [
        "merge\tapart\t1\t1",
        "merge\ttogether\t1\t0",
        "place\tbuffer\t2\t0",
        "place\tfuse\t2\t2",
    ];
    let mut tally = Tally::new("gpu");
    all.iter().for_each(|decision| tally.decided([decision]));
    assert_eq!(
        tally.lines(),
        expected
            .map(|line| format!("decided\tgpu\t{line}\n"))
            .concat()
    );
    let mut finished = Finished::new("c");
    finished.add(tally);
    assert!(finished.lines().ends_with("case\tc\t0\t0\t0\n"));
    finished.wrong.push("c / interp, seed 3:\tone".into());
    assert_eq!(finished.lines(), "wrong\tc / interp, seed 3: one\n");
}
