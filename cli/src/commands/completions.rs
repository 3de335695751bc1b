//! `gristmill completions`: shell completions.

use crate::failure::Result;
use crate::model;
use clap::builder::PossibleValuesParser;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use std::io::{self, Write};

const NOTES: &str = "\
Examples:
  gristmill completions bash > ~/.local/share/bash-completion/completions/gristmill
  gristmill completions zsh > ~/.zfunc/_gristmill   needs `fpath+=~/.zfunc` before compinit
  gristmill completions fish > ~/.config/fish/completions/gristmill.fish
  source <(gristmill completions bash)              current shell only";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct CompletionsArgs {
    /// Shell to generate completions for
    shell: Shell,
}

pub fn run(options: CompletionsArgs) -> Result {
    let mut command = crate::Arguments::command();
    // bash completes files and model names; with names, zsh would not complete files.
    if options.shell == Shell::Bash {
        command = command.mut_subcommands(named);
    }
    let name = command.get_name().to_owned();
    // Buffered, since the generator panics on a closed pipe.
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut command, name, &mut text);
    Ok(io::stdout().lock().write_all(&text)?)
}

/// Adds model names to the completion of MODEL.
fn named(command: Command) -> Command {
    command.mut_args(|arg| match arg.get_id().as_str() {
        "model" => arg.value_parser(PossibleValuesParser::new(model::names())),
        _ => arg,
    })
}
