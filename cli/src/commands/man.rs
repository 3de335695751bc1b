//! `gristmill man`: manual pages.

use crate::environment::{HEADING, VARIABLES};
use crate::failure::{Failure, Result};
use clap::{Arg, Args, Command, CommandFactory};
use clap_mangen::Man;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;

const NOTES: &str = "\
Examples:
  gristmill man | man -l -                      read the manual page
  gristmill man chat | man -l -                 that of a command
  gristmill man --dir ~/.local/share/man/man1   install all pages";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct ManArgs {
    /// Command to print the page of [default: the program]
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    name: Option<String>,
    /// Write the pages of all commands to a folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Exit codes, for every page.
const STATUS: &[(&str, &str)] =
    &[("0", "success"), ("1", "failure; standard error has the cause and a hint"), ("2", "wrong usage")];

pub fn run(options: ManArgs) -> Result {
    // The `help` subcommand has no page.
    let mut command = crate::Arguments::command().disable_help_subcommand(true);
    // Sets the full names of subcommands.
    command.build();
    if let Some(dir) = &options.dir {
        let failed = |e| Failure::file("write manual pages to", dir, e);
        std::fs::create_dir_all(dir).map_err(failed)?;
        for page in std::iter::once(&command).chain(command.get_subcommands()) {
            let name = page.get_display_name().unwrap_or(page.get_name());
            std::fs::write(dir.join(format!("{name}.1")), text(page)?).map_err(failed)?;
        }
        say!("wrote the manual pages to {}", dir.display());
        return Ok(());
    }
    let page = match &options.name {
        None => &command,
        Some(name) => command.find_subcommand(name).ok_or_else(|| {
            let names: Vec<&str> = command.get_subcommands().map(|c| c.get_name()).collect();
            Failure::usage(format_args!("there is no command {name}"), format!("commands are {}", names.join(", ")))
        })?,
    };
    Ok(io::stdout().lock().write_all(&text(page)?)?)
}

/// Renders the page of a command.
fn text(command: &Command) -> Result<Vec<u8>> {
    let notes = command.get_after_help().map(|notes| notes.to_string()).unwrap_or_default();
    // Environment variables have a section of their own.
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
        // Without filling, which would join the lines.
        section(&mut rest, "EXAMPLES", &format!(".nf\n{}\n.fi", escaped(examples)));
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

fn section(out: &mut String, name: &str, text: &str) {
    // Writing to a string cannot fail.
    let _ = write!(out, ".SH \"{name}\"\n{text}\n");
}

/// Renders a list of names with descriptions.
fn listed(rows: &[(&str, &str)]) -> String {
    let rows: Vec<String> = rows.iter().map(|(name, about)| format!(".TP\n\\fB{}\\fR\n{}", escaped(name), escaped(about))).collect();
    rows.join("\n")
}

/// Escapes text for roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let line = |line: &str| if line.starts_with('.') { format!("\\&{line}") } else { line.to_owned() };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Renders the synopsis of a command, options with their values.
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
