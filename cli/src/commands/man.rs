//! `gristmill man`.

use crate::failure::{Failure, Result};
use clap::{Args, CommandFactory};
use clap_mangen::Man;
use std::io::{self, Write};
use std::path::PathBuf;

const NOTES: &str = "\
Examples:
  gristmill man | man -l -                          read it
  gristmill man chat | man -l -                     that of a command
  gristmill man --dir ~/.local/share/man/man1       install all of them: `man gristmill`, `man gristmill-chat`";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// Of which command [default: of the program]
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    name: Option<String>,
    /// Write the pages of all commands into a folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub fn run(options: Options) -> Result {
    let mut command = crate::Arguments::command();
    if let Some(dir) = &options.dir {
        let failed = |e| Failure::file("write man pages into", dir, e);
        std::fs::create_dir_all(dir).map_err(failed)?;
        clap_mangen::generate_to(command, dir).map_err(failed)?;
        say!("man pages written into {}", dir.display());
        return Ok(());
    }
    // Subcommands learn their full names.
    command.build();
    let page = match &options.name {
        None => command,
        Some(name) => match command.find_subcommand(name) {
            Some(sub) => sub.clone(),
            None => {
                let names: Vec<&str> = command.get_subcommands().map(|c| c.get_name()).collect();
                return Err(Failure::usage(format_args!("there is no command {name}"), format!("there are {}", names.join(", "))));
            }
        },
    };
    let mut text = Vec::new();
    Man::new(page).render(&mut text)?;
    Ok(io::stdout().lock().write_all(&text)?)
}
