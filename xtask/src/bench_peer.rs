//! `xtask bench-peer`: benchmarks gristmill against llama.cpp on the same files.
//!
//! Both programs alternate, test by test, so that background load affects both. The JSON file holds
//! every sample; `xtask benchmarks` generates docs/benchmarks.md
//! from the files under docs/benchmarks.

mod programs;

use crate::benchmarks::report::{BenchReport, BenchRow, Peer, Side, Test, markdown};
use crate::machine::{self, Ticks};
use crate::shell;
use anyhow::{Context, Result, bail};
use programs::{Gristmill, LlamaBench};
use std::path::{Path, PathBuf};

const NOTES: &str = "\
Samples alternate: gristmill, the peer, gristmill, … A sample is one process. The peer runs with every -fa of --fa, and
its better median is compared. Both use an f16 KV cache. `start` is the wall-clock time of a process that loads the model
and computes one token, with warm caches.
Without -o the report is only printed.";

#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// Path of llama.cpp's llama-bench
    #[arg(long, value_name = "PATH")]
    peer: PathBuf,
    /// Origin and build of the peer, for the report
    #[arg(long, value_name = "TEXT", default_value = "llama.cpp")]
    peer_name: String,
    /// gristmill binary to measure [default: built from this tree]
    #[arg(long, value_name = "PATH")]
    gristmill: Option<PathBuf>,
    /// Revision that --gristmill was built from, for the report [default: this tree's]
    #[arg(long, value_name = "REV")]
    commit: Option<String>,
    /// Threads of each program [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Prompt length in tokens; 0 skips prefill
    #[arg(short, value_name = "N", default_value_t = 512)]
    p: usize,
    /// Number of generated tokens; 0 skips decode
    #[arg(short, value_name = "N", default_value_t = 64)]
    n: usize,
    /// Context depths: tokens already in the KV cache
    #[arg(
        short,
        value_name = "DEPTH",
        value_delimiter = ',',
        default_value = "0,4096"
    )]
    d: Vec<usize>,
    /// Samples per test and program
    #[arg(short, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    r: u16,
    /// Values of the peer's -fa (flash attention)
    #[arg(long, value_name = "0|1", value_delimiter = ',', default_value = "0,1", value_parser = clap::value_parser!(u8).range(0..=1))]
    fa: Vec<u8>,
    /// Instruction set for gristmill, as its --isa
    #[arg(long, value_name = "SET")]
    isa: Option<String>,
    /// Skip the start-up test
    #[arg(long)]
    no_start: bool,
    /// JSON file for the report; rewritten after every test
    #[arg(short, long, value_name = "FILE.json")]
    output: Option<PathBuf>,
    /// Model files that both programs read
    #[arg(required = true)]
    models: Vec<PathBuf>,
}

/// Returns true once everything is measured.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    if let Some(missing) = options.models.iter().find(|model| !model.is_file()) {
        bail!(
            "there is no file {}\nhint: `gristmill synth PRESET --quant QUANT -o FILE` writes one of real shape",
            missing.display()
        );
    }
    if options.p == 0 && options.n == 0 && options.no_start {
        bail!("-p 0 -n 0 --no-start leaves nothing to measure\nhint: leave one of them out");
    }
    let threads = options.threads.map_or_else(machine::cores, Ok)?;
    let peer = LlamaBench {
        path: shell::program(&options.peer, programs::PEER_HINT)?,
        threads,
        flash: options.fa.clone(),
    };
    let path = match &options.gristmill {
        Some(path) => shell::program(
            path,
            "leave --gristmill out to build and measure this tree's",
        )?,
        None => shell::gristmill(&root)?,
    };
    let ours = Gristmill {
        path,
        threads,
        isa: options.isa.clone(),
    };

    let mut report = BenchReport {
        date: machine::today(),
        command: command(options, threads),
        machine: machine::describe(threads)?,
        commit: options
            .commit
            .clone()
            .map_or_else(|| shell::commit(&root), Ok)?,
        peer: Peer {
            name: options.peer_name.clone(),
            ..Peer::default()
        },
        rows: vec![],
    };
    // Fail now rather than after an hour if the report cannot be written.
    if let Some(path) = &options.output {
        shell::save(path, &report)?;
    }
    for model in &options.models {
        for (test, depth) in tests(options) {
            let row = measure(options, &ours, &peer, model, test, depth, &mut report)?;
            report.rows.push(row);
            if let Some(path) = &options.output {
                shell::save(path, &report)?;
            }
        }
    }
    print!("{}", markdown(&report));
    Ok(true)
}

/// Lists the tests of one model: prefill and decode per depth, then start-up with warm caches.
fn tests(options: &Options) -> Vec<(Test, usize)> {
    let mut tests = vec![];
    for &depth in &options.d {
        tests.extend((options.p > 0).then_some((Test::Prompt(options.p), depth)));
        tests.extend((options.n > 0).then_some((Test::Generation(options.n), depth)));
    }
    tests.extend((!options.no_start).then_some((Test::Start, 0)));
    tests
}

/// Measures one test of one model, both programs in alternation.
fn measure(
    options: &Options,
    ours: &Gristmill,
    peer: &LlamaBench,
    model: &Path,
    test: Test,
    depth: usize,
    report: &mut BenchReport,
) -> Result<BenchRow> {
    let name = model
        .file_name()
        .context("a model's path ends in a name")?
        .to_string_lossy()
        .into_owned();
    let mut row = BenchRow::new(name.clone(), test, depth, &options.fa);
    // A warm-up round keeps one-time work (kernel compilation, reading the
    // file from disk) out of the start-up samples.
    let rounds = if test == Test::Start {
        0..=options.r
    } else {
        1..=options.r
    };
    for round in rounds {
        let counts = round > 0;
        let place = if counts {
            format!("sample {round} of {}", options.r)
        } else {
            "not counted".to_owned()
        };
        let say = |who: &str, what: String| {
            eprintln!("bench-peer: {name} {test} @ {depth}, {place}: {who} {what}")
        };
        say("gristmill", "…".to_owned());
        let before = Ticks::now();
        let sample = ours.sample(model, test, depth)?;
        let others = since(before);
        say("gristmill", shown(test, sample.value, others));
        if counts {
            row.gristmill.samples.push(sample.value);
            row.gristmill.others.extend(others);
            row.bytes_per_token = sample.bytes_per_token.or(row.bytes_per_token);
            // Keep the maximum: gristmill, too, reports the best of its passes.
            if let Some(bandwidth) = sample.read_bandwidth {
                let best = report
                    .machine
                    .read_bandwidth
                    .map_or(bandwidth, |best| best.max(bandwidth));
                report.machine.read_bandwidth = Some(best);
            }
        }
        say("peer", "…".to_owned());
        let before = Ticks::now();
        let samples = peer.samples(model, test, depth)?;
        let others = since(before);
        for found in samples {
            let label = flash_label(found.flash);
            say(&format!("peer, {label}"), shown(test, found.value, others));
            report.peer.build = found.build;
            if let Some(side) = row
                .peer
                .iter_mut()
                .find(|side| side.label == label && counts)
            {
                side.samples.push(found.value);
                side.others.extend(others);
            }
        }
    }
    check_samples(&row, options, peer, test)?;
    Ok(row)
}

/// Fails if the peer gave fewer samples than were asked for in one of its settings.
fn check_samples(row: &BenchRow, options: &Options, peer: &LlamaBench, test: Test) -> Result<()> {
    if let Some(short) = row
        .peer
        .iter()
        .find(|side| side.samples.len() != usize::from(options.r))
    {
        bail!(
            "{} gave {} samples of {test} with {} instead of {}\nhint: {}",
            peer.path.display(),
            short.samples.len(),
            short.label,
            options.r,
            programs::PEER_HINT
        );
    }
    Ok(())
}

/// Returns the share of the cores that other programs used since `before`.
fn since(before: Option<Ticks>) -> Option<f64> {
    Some(before?.others(Ticks::now()?))
}

fn shown(test: Test, value: f64, others: Option<f64>) -> String {
    let others = others.map_or(String::new(), |share| {
        format!(" (others used {:.0} % of the cores)", share * 100.0)
    });
    test.show(value) + &others
}

/// Formats the label of an -fa setting of the peer.
pub fn flash_label(flash: u8) -> String {
    format!("-fa {flash}")
}

/// Formats a command line for the report, without folders.
fn command(options: &Options, threads: usize) -> String {
    let list = |numbers: Vec<String>| numbers.join(",");
    let mut text = format!("cargo xtask bench-peer --peer llama-bench --threads {threads}");
    text += &format!(" -p {} -n {}", options.p, options.n);
    text += &format!(
        " -d {}",
        list(options.d.iter().map(|d| d.to_string()).collect())
    );
    text += &format!(
        " -r {} --fa {}",
        options.r,
        list(options.fa.iter().map(|f| f.to_string()).collect())
    );
    if let Some(isa) = &options.isa {
        text += &format!(" --isa {isa}");
    }
    if options.no_start {
        text += " --no-start";
    }
    for model in &options.models {
        text += &format!(
            " {}",
            model.file_name().unwrap_or_default().to_string_lossy()
        );
    }
    text
}

impl BenchRow {
    fn new(model: String, test: Test, depth: usize, flash: &[u8]) -> BenchRow {
        let side = |label: String| Side {
            label,
            samples: vec![],
            others: vec![],
        };
        BenchRow {
            model,
            test,
            depth,
            gristmill: side("gristmill".to_owned()),
            peer: flash.iter().map(|&f| side(flash_label(f))).collect(),
            bytes_per_token: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Options {
        Line::parse_from(line.split(' ')).options
    }

    #[test]
    fn a_depth_is_a_prompt_and_a_generation_and_the_start_is_last() {
        let all = tests(&options("x --peer b -d 0,64 m"));
        let (prompt, generation) = (Test::Prompt(512), Test::Generation(64));
        assert_eq!(
            all,
            [
                (prompt, 0),
                (generation, 0),
                (prompt, 64),
                (generation, 64),
                (Test::Start, 0)
            ]
        );
        assert_eq!(
            tests(&options("x --peer b -d 0 -n 0 --no-start m")),
            [(prompt, 0)]
        );
    }

    #[test]
    fn the_command_names_no_folder() {
        let text = command(&options("x --peer /a/b -d 0 --isa avx2 /models/m.gguf"), 2);
        assert!(
            text.ends_with("--threads 2 -p 512 -n 64 -d 0 -r 3 --fa 0,1 --isa avx2 m.gguf"),
            "{text}"
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&options("x --peer b no/such/model"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no/such/model") && error.contains("synth"),
            "{error}"
        );
    }
}
