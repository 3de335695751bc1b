//! `gristmill completions`.

use crate::failure::Result;
use crate::model;
use clap::builder::PossibleValuesParser;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use std::io::{self, Write};

const NOTES: &str = "\
Examples:
  gristmill completions bash > ~/.local/share/bash-completion/completions/gristmill
  gristmill completions zsh > ~/.zfunc/_gristmill          with `fpath+=~/.zfunc` before compinit
  gristmill completions fish > ~/.config/fish/completions/gristmill.fish
  source <(gristmill completions bash)                     for this shell alone";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// Which shell
    shell: Shell,
}

pub fn run(options: Options) -> Result {
    let mut command = crate::Arguments::command();
    // bash completes files besides. zsh would complete names alone, and the others neither.
    if options.shell == Shell::Bash {
        command = command.mut_subcommands(named);
    }
    let name = command.get_name().to_owned();
    // By way of memory: the generator does not take a reader that leaves.
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut command, name, &mut text);
    Ok(io::stdout().lock().write_all(&text)?)
}

/// The names of models where a command takes one.
fn named(command: Command) -> Command {
    command.mut_args(|arg| match arg.get_id().as_str() {
        "model" => arg.value_parser(PossibleValuesParser::new(model::names())),
        _ => arg,
    })
}
