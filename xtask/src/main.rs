//! Developer commands. `cargo xtask --help` lists them.

mod ablation;
mod bench_peer;
mod bench_serve;
mod benchmarks;
mod bless;
mod ci;
mod conformance;
mod experiments;
mod fit;
mod generated_page;
mod kernels_diff;
mod machine;
mod package;
mod page;
mod quality;
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
    /// Run the merge gate, or only its quick checks with --fast
    Ci(ci::Options),
    /// Check the boundaries of the workspace: crate dependencies, names, house rules
    Tidy(tidy::Options),
    /// Rerun the tests with snapshots in update mode and list what changed
    Bless(bless::Options),
    /// Run the conformance suite on perturbed schedules, and check that every alternative is taken
    Conformance(conformance::Options),
    /// Diff the generated kernels of this tree against another revision
    KernelsDiff(kernels_diff::Options),
    /// Benchmark gristmill against llama.cpp on the same files, in alternation
    BenchPeer(bench_peer::Options),
    /// Benchmark OpenAI-compatible servers under load, in alternation
    BenchServe(bench_serve::Options),
    /// Stress an OpenAI-compatible server with clients that
    /// disconnect; check answers, leaks and waits
    Soak(soak::Options),
    /// Generate docs/benchmarks.md from the reports in docs/benchmarks
    Benchmarks(benchmarks::Options),
    /// Generate the index of docs/experiments from front matter
    Experiments(experiments::Options),
    /// Generate docs/ablation.md from the reports in docs/ablation, or measure a report
    Ablation(ablation::Options),
    /// Generate docs/quality.md from the reports in docs/quality, or measure published files
    Quality(quality::Options),
    /// Fit the cost model's coefficients of a machine to measured kernel times
    Fit(fit::Options),
    /// Build the page that runs models in the browser: a folder of static files
    Page(page::Options),
    /// Build archives, wheels and checksums of a release with zig
    Package(package::Options),
}

/// Exits with 0 if clean, 1 on findings (a diff, a failing test), 2 if the command itself failed.
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
        Command::Quality(options) => quality::run(&options),
        Command::Fit(options) => fit::run(&options),
        Command::Package(options) => package::run(&options),
        Command::Page(options) => page::run(&options),
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
