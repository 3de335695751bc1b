//! The command line: one file per command in `commands/`.

/// Prints a line to standard error; a failed write is ignored, since results go to standard output.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}

mod ab_bench;
mod bandwidth;
mod beam;
mod bench_batch;
mod bench_drafts;
mod commands;
mod disambiguate;
mod environment;
mod failure;
mod flags;
mod generate;
mod input;
mod interrupt;
mod isolation;
mod link;
mod llama_flags;
mod model;
mod model_arg;
mod npy;
mod output;
mod placement_flags;
mod plans;
mod progress;
mod reasoning_view;
mod replica_devices;
mod sampler;
mod serve_models;
mod size;
mod speculation;
mod stages;
mod style;
mod table;
mod terminal;
mod timings;
mod usage;
mod viewer;
mod wrap;

use clap::Parser;
use std::process::ExitCode;

const NOTES: &str = "\
Examples:
  gristmill chat                                     chat with the built-in demo model
  gristmill chat glm-4.7-flash                       with another model, downloaded on first use
  gristmill run MODEL.gguf -p 'What is this?'        complete one prompt
  gristmill serve MODEL.gguf                         OpenAI-compatible server and chat page
  gristmill bench MODEL.gguf                         tokens per second
  gristmill profile MODEL.gguf --html profile.html   time of each kernel

MODEL is a .gguf file, a hub repository ORG/REPO[:QUANT], a short name (`gristmill list`), demo,
or synth:PRESET:QUANT (random weights). llama.cpp's flags -m, -c, -t, -ngl, -fa, -ctk, -ctv, -hf,
-n, -s, -sys, -np, -b and -ub are accepted. `gristmill COMMAND --help` has examples of each
command.";

fn notes() -> String {
    format!("{NOTES}\n\n{}", environment::text())
}

/// Run large language models from GGUF files, with kernels compiled for this machine.
#[derive(Parser)]
#[command(name = "gristmill", version, max_term_width = 100, after_help = notes())]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

/// Exit codes: 0 success, 1 failure, 2 usage.
fn main() -> ExitCode {
    // First, since the helper process has few rights and its parent waits for it.
    if let Some(helper) = isolation::helper() {
        return helper();
    }
    let result = usage::parse::<Arguments>(std::env::args_os()).command.run();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.report()),
    }
}
