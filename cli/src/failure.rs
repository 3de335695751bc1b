//! How a command fails: a message, a way out, an exit code.

use crate::style::{alarming, helpful};
pub use crate::terminal::printable;
use gristmill_llm::{arch, chat, engine, file, language, sampling, sched, synth, tokenizer};
use std::fmt::Display;
use std::io;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

/// What commands return.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// Exit code of wrong usage, as clap has it.
const USAGE: u8 = 2;
/// For errors that know no better.
const ASK_FOR_HELP: &str = "`gristmill COMMAND --help` says what a command takes";
/// For files that say of themselves what is wrong.
const DAMAGED: &str = "the file is damaged or was written by a faulty tool: download or convert it again";

impl Failure {
    /// Exit code 1.
    pub fn new(message: impl Display, hint: impl Into<String>) -> Failure {
        Failure { message: message.to_string(), hint: Some(hint.into()), code: 1 }
    }
    /// A flag that cannot be honoured whatever the model and the machine.
    pub fn usage(message: impl Display, hint: impl Into<String>) -> Failure {
        Failure { code: USAGE, ..Failure::new(message, hint) }
    }
    /// Reading or writing that file failed.
    pub fn file(what: &str, path: &std::path::Path, error: io::Error) -> Failure {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "check the permissions of the file and its folder",
            io::ErrorKind::StorageFull => "make room on the disk, or choose another place",
            _ => "check the path and the disk",
        };
        Failure::new(format_args!("cannot {what} {}: {error}", path.display()), hint)
    }
    /// The same with more of a hint.
    pub fn with_hint(mut self, more: &str) -> Failure {
        self.hint = self.hint.map(|hint| hint + more);
        self
    }
    /// What went wrong and what to do about it, for whoever tells it elsewhere.
    pub fn parts(self) -> (String, Option<String>) {
        (self.message, self.hint)
    }
    /// Is there nothing to tell: has the reader gone away?
    pub fn is_quiet(&self) -> bool {
        self.message.is_empty()
    }
    /// Tells the user on standard error; the exit code.
    pub fn report(&self) -> u8 {
        // A reader that has gone away (`gristmill … | head`) is no failure worth a word.
        if !self.is_quiet() {
            say!("{} {}", alarming("error:"), printable(&self.message));
            say!("{} {}", helpful("hint:"), printable(self.hint.as_deref().unwrap_or(ASK_FOR_HELP)));
        }
        self.code
    }
    /// What went wrong, and what to do about it.
    pub fn text(&self) -> String {
        printable(&format!("{}\nhint: {}", self.message, self.hint.as_deref().unwrap_or(ASK_FOR_HELP)))
    }
}

/// Names in a message before it says how many more there are.
const NAMES: usize = 12;

/// Names for a message: the first of them, and how many more there are.
pub fn some_of(names: &[String]) -> String {
    let mut text = names.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > NAMES {
        text.push_str(&format!(" and {} more", names.len() - NAMES));
    }
    text
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure { message: String::new(), hint: None, code: 0 },
            _ => Failure::new(format_args!("standard input or output: {error}"), "check what it is connected to"),
        }
    }
}

/// Errors that bring their own hint; what stands in where they have none.
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
