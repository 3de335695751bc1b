//! Failure of a command: message, hint and exit code.

use crate::style::{alarming, helpful};
pub use crate::terminal::printable;
use gristmill_llm::{arch, chat, engine, file, language, sampling, sched, synth, tokenizer};
use std::fmt::Display;
use std::io;

/// Error of a command.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

/// Result of a command.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// Exit code of wrong usage, the same as clap's.
const USAGE: u8 = 2;
/// Hint of errors without one.
const ASK_FOR_HELP: &str = "`gristmill COMMAND --help` lists the flags of a command";
/// Hint of errors in a model file.
const DAMAGED: &str =
    "the file is damaged or was written by a faulty tool: download or convert it again";

impl Failure {
    /// A failure with exit code 1.
    pub fn new(message: impl Display, hint: impl Into<String>) -> Failure {
        Failure {
            message: message.to_string(),
            hint: Some(hint.into()),
            code: 1,
        }
    }
    /// Wrong usage, on any model and machine: exit code 2.
    pub fn usage(message: impl Display, hint: impl Into<String>) -> Failure {
        Failure {
            code: USAGE,
            ..Failure::new(message, hint)
        }
    }
    /// An I/O error of a file; `what` is the verb, such as "read".
    pub fn file(what: &str, path: &std::path::Path, error: io::Error) -> Failure {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "check the permissions of the file and its folder",
            io::ErrorKind::StorageFull => "free disk space, or choose another folder",
            _ => "check the path and the disk",
        };
        Failure::new(
            format_args!("cannot {what} {}: {error}", path.display()),
            hint,
        )
    }
    /// Appends to the hint.
    pub fn with_hint(mut self, more: &str) -> Failure {
        self.hint = self.hint.map(|hint| hint + more);
        self
    }
    /// Splits into message and hint.
    pub fn parts(self) -> (String, Option<String>) {
        (self.message, self.hint)
    }
    /// Whether it is a closed standard output, which is not reported.
    pub fn is_quiet(&self) -> bool {
        self.message.is_empty()
    }
    /// Prints to standard error; returns the exit code.
    pub fn report(&self) -> u8 {
        // A closed pipe (`gristmill … | head`) is not an error.
        if !self.is_quiet() {
            say!("{} {}", alarming("error:"), printable(&self.message));
            say!(
                "{} {}",
                helpful("hint:"),
                printable(self.hint.as_deref().unwrap_or(ASK_FOR_HELP))
            );
        }
        self.code
    }
    /// Message and hint in two lines.
    pub fn text(&self) -> String {
        printable(&format!(
            "{}\nhint: {}",
            self.message,
            self.hint.as_deref().unwrap_or(ASK_FOR_HELP)
        ))
    }
}

/// Maximum number of names in a message.
const NAMES: usize = 12;

/// Joins names for a message, with the number of those left out.
pub fn some_of(names: &[String]) -> String {
    let mut text = names
        .iter()
        .take(NAMES)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > NAMES {
        text.push_str(&format!(" and {} more", names.len() - NAMES));
    }
    text
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure {
                message: String::new(),
                hint: None,
                code: 0,
            },
            _ => Failure::new(
                format_args!("standard input or output: {error}"),
                "check the terminal, file or pipe that it is connected to",
            ),
        }
    }
}

/// Errors with hints, and the hint for those without one.
macro_rules! failures { ($($error:ty, $otherwise:expr;)*) => { $(
    impl From<$error> for Failure {
        fn from(error: $error) -> Failure {
            let hint = error.hint().unwrap_or_else(|| String::from($otherwise));
            Failure::new(error, hint)
        }
    }
)* } }
failures! {
    file::Error, DAMAGED;
    arch::Error, DAMAGED;
    language::Error, DAMAGED;
    tokenizer::TokenizerError, DAMAGED;
    chat::ChatError, DAMAGED;
    engine::Error, ASK_FOR_HELP;
    sched::Error, ASK_FOR_HELP;
    synth::Error, ASK_FOR_HELP;
    sampling::SamplingError, ASK_FOR_HELP;
    gristmill_server::Error, ASK_FOR_HELP;
    gristmill_runtime::Error, "check the disk and the permissions";
    gristmill_hub::Error, ASK_FOR_HELP;
    gristmill_hub::RunningError, ASK_FOR_HELP;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_left_is_no_failure() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(failure.report(), 0);
    }
}
