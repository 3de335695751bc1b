//! The command line. One file a command, in `commands/`; one line for each there.

/// A line on standard error. That it cannot be written is no reason to fail: the answer is on standard output.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}

mod answer;
mod commands;
mod failure;
mod flags;
mod measure;
mod model;
mod npy;
mod progress;
mod sampler;

use clap::Parser;
use std::process::ExitCode;

/// Runs quantised language models with kernels it writes itself.
#[derive(Parser)]
#[command(name = "gristmill", version, about, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

/// 0 done, 1 failed, 2 usage.
fn main() -> ExitCode {
    match Arguments::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.report()),
    }
}
