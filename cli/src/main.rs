//! The command line. One file a command, in `commands/`; one line for each there.

/// A line on standard error. That it cannot be written is no reason to fail: the answer is on standard output.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}

mod answer;
mod bandwidth;
mod beam;
mod choice;
mod commands;
mod environment;
mod failure;
mod flags;
mod input;
mod interrupt;
mod isolation;
mod measure;
mod model;
mod npy;
mod offer;
mod output;
mod plans;
mod progress;
mod reader;
mod sampler;
mod sequences;
mod size;
mod stages;
mod style;
mod terminal;
mod viewer;
mod wrap;

use clap::Parser;
use std::process::ExitCode;

const NOTES: &str = "\
Examples:
  gristmill chat                                       talk to the demo model, which is inside the program
  gristmill chat glm-4.7-flash                         to another, fetched the first time
  gristmill run MODEL.gguf -p 'What is this?'          one answer
  gristmill bench MODEL.gguf                           how fast it is
  gristmill profile MODEL.gguf --html profile.html     and where the time goes

MODEL is a .gguf file, ORG/REPO[:QUANT] of the hub, a short name (`gristmill list`), demo, or synth:PRESET:QUANT.
`gristmill COMMAND --help` has examples of each.";

fn notes() -> String {
    format!("{NOTES}\n\n{}", environment::text())
}

/// Runs quantised language models with kernels it writes itself.
#[derive(Parser)]
#[command(name = "gristmill", version, about, max_term_width = 110, after_help = notes())]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

/// 0 done, 1 failed, 2 usage.
fn main() -> ExitCode {
    // Before anything else is set up: this process may do little, and is waited for.
    if isolation::is_helper() {
        return gristmill_llm::chat::helper();
    }
    match Arguments::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.report()),
    }
}
