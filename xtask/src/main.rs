//! Developer commands. `cargo xtask --help` lists them.

mod ablation;
mod bench_peer;
mod bench_serve;
mod benchmarks;
mod bless;
mod ci;
mod conformance;
mod experiments;
mod kernels_diff;
mod machine;
mod serving;
mod shell;
mod soak;
mod tidy;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of Gristmill")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gate, or with --fast the checks that answer within three minutes
    Ci(ci::Options),
    /// Hold the boundaries: import directions, where names may appear, house rules
    Tidy(tidy::Options),
    /// Rerun the tests with snapshots in update mode and list what changed
    Bless(bless::Options),
    /// Run the conformance suite with many perturbed schedules, and count which alternatives of each decision were taken
    Conformance(conformance::Options),
    /// Diff the kernels of this tree against those of another revision
    KernelsDiff(kernels_diff::Options),
    /// Measure gristmill beside llama.cpp on the same files, in turns
    BenchPeer(bench_peer::Options),
    /// Measure servers of OpenAI's interface under load, in turns
    BenchServe(bench_serve::Options),
    /// Ask a server of OpenAI's interface for long, with clients that hang up: pages, memory, waiting, and every answer as it is alone
    Soak(soak::Options),
    /// Write docs/benchmarks.md from what bench-peer measured (docs/benchmarks/*.json)
    Benchmarks(benchmarks::Options),
    /// Write the index of docs/experiments from the front matter of its files
    Experiments(experiments::Options),
    /// Write docs/ablation.md, what each optimisation is worth (docs/ablation/*.json), or measure one of its files
    Ablation(ablation::Options),
}

/// 0 clean, 1 there is something to look at (findings, a diff, a failing test), 2 the command itself failed.
fn main() -> ExitCode {
    let done = match Options::parse().command {
        Command::Ci(options) => ci::run(&options),
        Command::Experiments(options) => experiments::run(&options),
        Command::Tidy(options) => tidy::run(&options),
        Command::Bless(options) => bless::run(&options),
        Command::Conformance(options) => conformance::run(&options),
        Command::KernelsDiff(options) => kernels_diff::run(&options),
        Command::BenchPeer(options) => bench_peer::run(&options),
        Command::BenchServe(options) => bench_serve::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Benchmarks(options) => benchmarks::run(&options),
        Command::Ablation(options) => ablation::run(&options),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
