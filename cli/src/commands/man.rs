//! `gristmill man`.

use crate::environment::{HEADING, VARIABLES};
use crate::failure::{Failure, Result};
use clap::{Arg, Args, Command, CommandFactory};
use clap_mangen::Man;
use std::fmt::Write as _;
use std::io::{self, Write as _};
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

/// What exit codes mean: of every page.
const STATUS: &[(&str, &str)] =
    &[("0", "done"), ("1", "failed; standard error says why, and what to do about it"), ("2", "wrong usage")];

pub fn run(options: Options) -> Result {
    // `help` has no page of its own.
    let mut command = crate::Arguments::command().disable_help_subcommand(true);
    // Subcommands learn their full names.
    command.build();
    if let Some(dir) = &options.dir {
        let failed = |e| Failure::file("write man pages into", dir, e);
        std::fs::create_dir_all(dir).map_err(failed)?;
        for page in std::iter::once(&command).chain(command.get_subcommands()) {
            let name = page.get_display_name().unwrap_or(page.get_name());
            std::fs::write(dir.join(format!("{name}.1")), text(page)?).map_err(failed)?;
        }
        say!("man pages written into {}", dir.display());
        return Ok(());
    }
    let page = match &options.name {
        None => &command,
        Some(name) => command.find_subcommand(name).ok_or_else(|| {
            let names: Vec<&str> = command.get_subcommands().map(|c| c.get_name()).collect();
            Failure::usage(format_args!("there is no command {name}"), format!("there are {}", names.join(", ")))
        })?,
    };
    Ok(io::stdout().lock().write_all(&text(page)?)?)
}

/// A page.
fn text(command: &Command) -> Result<Vec<u8>> {
    let notes = command.get_after_help().map(|notes| notes.to_string()).unwrap_or_default();
    // The environment has a section of its own.
    let notes = notes.split(HEADING).next().unwrap_or_default();
    let (prose, examples) = notes.split_once("Examples:\n").unwrap_or((notes, ""));
    let (examples, more) = examples.split_once("\n\n").unwrap_or((examples, ""));
    let command = command.clone().override_usage(usage(command)).after_help(None::<&str>);
    let has_commands = command.has_subcommands();
    let man = Man::new(command);
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if has_commands {
        man.render_subcommands_section(&mut out)?;
    }
    let prose = [prose.trim(), more.trim()].join("\n\n");
    let mut rest = String::new();
    if !prose.trim().is_empty() {
        section(&mut rest, "NOTES", &escaped(prose.trim()).replace("\n\n", "\n.PP\n"));
    }
    section(&mut rest, "ENVIRONMENT", &listed(VARIABLES));
    section(&mut rest, "EXIT STATUS", &listed(STATUS));
    if !examples.is_empty() {
        // As they stand: a filled paragraph would run them together.
        section(&mut rest, "EXAMPLES", &format!(".nf\n{}\n.fi", escaped(examples)));
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

fn section(out: &mut String, name: &str, text: &str) {
    // Into a string nothing fails.
    let _ = write!(out, ".SH \"{name}\"\n{text}\n");
}

/// Names, and what each is about.
fn listed(rows: &[(&str, &str)]) -> String {
    let rows: Vec<String> = rows.iter().map(|(name, about)| format!(".TP\n\\fB{}\\fR\n{}", escaped(name), escaped(about))).collect();
    rows.join("\n")
}

/// Text that roff takes as it is.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let line = |line: &str| if line.starts_with('.') { format!("\\&{line}") } else { line.to_owned() };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// How a command is called, options with their values.
fn usage(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let (placed, named): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(|arg| !arg.is_hide_set()).partition(|arg| arg.is_positional());
    let parts = named.into_iter().chain(placed).map(called);
    let commands = command.has_subcommands().then(|| "COMMAND".to_owned());
    std::iter::once(name.to_owned()).chain(parts).chain(commands).collect::<Vec<_>>().join(" ")
}

fn called(arg: &Arg) -> String {
    let flag = arg.get_long().map(|long| format!("--{long}")).or(arg.get_short().map(|short| format!("-{short}")));
    let takes = arg.get_num_args().is_some_and(|n| n.takes_values());
    let several = arg.get_num_args().is_some_and(|n| n.max_values() > 1);
    let values = arg.get_value_names().filter(|_| takes).map(|names| names.join(" "));
    let values = values.map(|values| if several { values + "..." } else { values });
    let whole = flag.into_iter().chain(values).collect::<Vec<_>>().join(" ");
    if arg.is_required_set() { whole } else { format!("[{whole}]") }
}
