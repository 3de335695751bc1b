//! Parses the command line, with suggestions beyond clap's for unknown flags.

use crate::llama_flags::{nearest, translate};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;

/// Parses the arguments, or ends the process with a message and exit code 2.
pub fn parse<P: CommandFactory + FromArgMatches>(
    arguments: impl IntoIterator<Item = OsString>,
) -> P {
    let arguments = translate(arguments, &P::command());
    let matches = P::command().try_get_matches_from(&arguments);
    let parsed = matches.and_then(|matches| P::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| with_suggestion(error, &arguments, &P::command()).exit())
}

/// The error of an unknown flag, with the flag that the tables name instead of clap's suggestion.
fn with_suggestion(
    mut error: clap::Error,
    arguments: &[OsString],
    program: &Command,
) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let first = arguments
        .get(1)
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let tip = match program.find_subcommand(first) {
        Some(command) => nearest(flag, suggested(&error), command)
            .map(|near| format!("the nearest flag is '{near}'")),
        None if first.starts_with('-') => {
            Some("flags come after a command: 'gristmill run -m MODEL -p TEXT'".to_owned())
        }
        None => None,
    };
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedArg);
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![tip.into()]),
        );
    }
    error
}

/// The flag that clap suggests.
fn suggested(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(flag) => Some(flag),
        _ => None,
    }
}
