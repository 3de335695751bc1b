//! Messages of a conversation: a line editor with history on a terminal, else lines of standard
//! input.

use crate::failure::{Failure, Result, printable};
use crate::style::prompting;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Editor, Helper};
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

/// Delimiter of a message of several lines.
const FENCE: &str = "\"\"\"";

/// Whether a message is incomplete: an open fence or a trailing backslash.
fn is_open(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => !rest.contains(FENCE),
        None => text.ends_with('\\'),
    }
}

/// Removes the fence or the backslashes of a message.
fn joined(text: &str) -> String {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => rest
            .split(FENCE)
            .next()
            .unwrap_or_default()
            .trim_matches('\n')
            .to_owned(),
        None => text
            .strip_suffix('\\')
            .unwrap_or(text)
            .replace("\\\n", "\n"),
    }
}

/// Editor helper: validates messages, completes commands and files.
pub struct Help {
    commands: Vec<&'static str>,
    files: FilenameCompleter,
}

impl Validator for Help {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(if is_open(context.input()) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Completer for Help {
    type Candidate = Pair;
    fn complete(
        &self,
        line: &str,
        at: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        if !line.starts_with('/') {
            return Ok((0, vec![]));
        }
        // The argument of a command is a file.
        if line[..at].contains(' ') {
            let (from, mut files) = self.files.complete(line, at, context)?;
            // Names are displayed as they are: those with control characters are left out.
            files.retain(|file| printable(&file.display) == file.display);
            return Ok((from, files));
        }
        let fits = self.commands.iter().filter(|c| c.starts_with(&line[..at]));
        Ok((
            0,
            fits.map(|c| Pair {
                display: (*c).into(),
                replacement: (*c).into(),
            })
            .collect(),
        ))
    }
}

impl Hinter for Help {
    type Hint = String;
}
impl Highlighter for Help {}
impl Helper for Help {}

/// Source of the messages of a conversation.
pub enum Input {
    /// A line editor, and its history file.
    Terminal(Box<Editor<Help, DefaultHistory>>, Option<PathBuf>),
    /// Lines of standard input.
    Pipe(io::StdinLock<'static>),
}

impl Input {
    /// Opens standard input; `commands` are completed on a terminal.
    pub fn open(commands: Vec<&'static str>) -> Result<Input> {
        if !io::stdin().is_terminal() {
            return Ok(Input::Pipe(io::stdin().lock()));
        }
        let mut editor = Box::new(Editor::new().map_err(broken)?);
        editor.set_helper(Some(Help {
            commands,
            files: FilenameCompleter::new(),
        }));
        let history = history();
        if let Some(path) = &history {
            // There is none before the first use.
            let _ = editor.load_history(path);
        }
        Ok(Input::Terminal(editor, history))
    }
    /// Whether standard input is a terminal.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(..))
    }
    /// Reads the next message; `None` at the end.
    pub fn message(&mut self) -> Result<Option<String>> {
        match self {
            Input::Pipe(input) => {
                let mut text = String::new();
                let mut any = false;
                while !any || is_open(&text) {
                    let mut bytes = Vec::new();
                    if input.read_until(b'\n', &mut bytes)? == 0 {
                        break;
                    }
                    if any {
                        text.push('\n');
                    }
                    any = true;
                    text.push_str(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']));
                }
                Ok(any.then(|| joined(&text)))
            }
            Input::Terminal(editor, history) => loop {
                match editor.readline(&("> ".to_owned(), prompting("> ").to_string())) {
                    Ok(line) => {
                        if !line.trim().is_empty()
                            && editor.add_history_entry(&line).unwrap_or(false)
                        {
                            let saved = history.as_ref().map(|path| editor.append_history(path));
                            if let Some(Err(error)) = saved {
                                say!("warning: the history cannot be saved: {error}");
                                *history = None;
                            }
                        }
                        return Ok(Some(joined(&line)));
                    }
                    Err(ReadlineError::Interrupted) => say!("(/exit or Ctrl-D to exit)"),
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(error) => return Err(broken(error)),
                }
            },
        }
    }
}

fn broken(error: ReadlineError) -> Failure {
    Failure::new(
        format_args!("terminal error: {error}"),
        "pipe the messages into standard input",
    )
}

/// History file under `$XDG_STATE_HOME` or `~/.local/state`; creates its folder with mode 700.
fn history() -> Option<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let variable = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let state = variable("XDG_STATE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".local").join("state")))?;
    let folder = state.join("gristmill");
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .ok()?;
    Some(folder.join("history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_and_backslashes_hold_lines_together() {
        for text in ["\"\"\"", "\"\"\"a", "\"\"\"a\nb", "a\\", "a\\\nb\\"] {
            assert!(is_open(text), "{text}");
        }
        for (text, message) in [
            ("a", "a"),
            ("", ""),
            ("\"\"\"a\"\"\"", "a"),
            ("\"\"\"\na\n  b\n\"\"\"", "a\n  b"),
            ("a\\\nb\\\nc", "a\nb\nc"),
            ("say \"\"\"a", "say \"\"\"a"),
        ] {
            assert!(!is_open(text), "{text}");
            assert_eq!(joined(text), message);
        }
        // Input that ends inside a message.
        assert_eq!(
            (joined("\"\"\"a\nb").as_str(), joined("a\\").as_str()),
            ("a\nb", "a")
        );
    }
}
