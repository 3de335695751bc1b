//! Colours on a terminal, unless `NO_COLOR` is set.

use crate::terminal;
use crate::wrap::Wrap;
use console::{StyledObject, Term, style};
use std::io::{self, IsTerminal, Write};

/// Style of secondary text on standard error.
pub fn faint(text: &str) -> StyledObject<&str> {
    style(text).for_stderr().dim()
}

/// Style of an error on standard error.
pub fn alarming(text: &str) -> StyledObject<&str> {
    style(text).for_stderr().red().bold()
}

/// Style of a hint on standard error.
pub fn helpful(text: &str) -> StyledObject<&str> {
    style(text).for_stderr().cyan()
}

/// Style of the input prompt.
pub fn prompting(text: &str) -> StyledObject<&str> {
    style(text).green().bold()
}

/// Tags that models put around their reasoning.
pub const THINKING: [&str; 2] = ["<think>", "</think>"];
const FAINT: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Writer of an answer.
///
/// On a terminal, control characters are escaped, lines wrap between words and reasoning may be
/// dim; elsewhere the bytes pass unchanged.
pub struct Screen<W: Write> {
    out: W,
    terminal: bool,
    /// Whether reasoning is dim.
    shaded: bool,
    thinking: bool,
    sanitizer: terminal::Sanitizer,
    /// Line wrapping, on a terminal.
    wrap: Option<Wrap>,
}

impl<W: Write + IsTerminal> Screen<W> {
    /// Writes to `out` without dimming.
    pub fn new(out: W) -> Screen<W> {
        let terminal = out.is_terminal();
        let columns = || {
            Term::stdout()
                .size_checked()
                .map(|(_, columns)| usize::from(columns))
        };
        let wrap = terminal.then(columns).flatten().map(Wrap::new);
        Screen {
            out,
            terminal,
            shaded: false,
            thinking: false,
            sanitizer: terminal::Sanitizer::default(),
            wrap,
        }
    }
    /// Writes to `out` with dim reasoning; `thinking` if the prompt has opened it.
    pub fn shaded(out: W, thinking: bool) -> io::Result<Screen<W>> {
        let shaded = out.is_terminal() && console::colors_enabled();
        Screen {
            shaded,
            ..Screen::new(out)
        }
        .begun(thinking)
    }
}

impl<W: Write> Screen<W> {
    fn begun(mut self, thinking: bool) -> io::Result<Screen<W>> {
        if thinking {
            self.turn(true)?;
        }
        Ok(self)
    }
    fn turn(&mut self, thinking: bool) -> io::Result<()> {
        self.thinking = thinking;
        self.end_word()?;
        if self.shaded {
            self.out
                .write_all(if thinking { FAINT } else { PLAIN }.as_bytes())
        } else {
            Ok(())
        }
    }
    /// Writes the text of a token. Reasoning tags are single tokens, so none is split.
    pub fn text(&mut self, mut piece: &str) -> io::Result<()> {
        while let Some(at) = piece.find(THINKING[usize::from(self.thinking)]) {
            let end = at + THINKING[usize::from(self.thinking)].len();
            if self.thinking {
                self.put(&piece[..end])?;
                self.turn(false)?;
            } else {
                self.put(&piece[..at])?;
                self.turn(true)?;
                self.put(&piece[at..end])?;
            }
            piece = &piece[end..];
        }
        self.put(piece)?;
        self.out.flush()
    }
    fn put(&mut self, text: &str) -> io::Result<()> {
        let shown = if self.terminal {
            self.sanitizer.piece(text)
        } else {
            text.into()
        };
        match &mut self.wrap {
            Some(wrap) => self.out.write_all(wrap.piece(&shown).as_bytes()),
            None => self.out.write_all(shown.as_bytes()),
        }
    }
    /// Writes the word that is held back.
    fn end_word(&mut self) -> io::Result<()> {
        let rest = self.wrap.as_mut().map(Wrap::rest).unwrap_or_default();
        self.out.write_all(rest.as_bytes())
    }
    /// Ends the answer, with a line end on a terminal or if `always`.
    pub fn end(mut self, always: bool) -> io::Result<()> {
        self.end_word()?;
        self.out.write_all(self.sanitizer.rest().as_bytes())?;
        if self.thinking {
            self.turn(false)?;
        }
        if self.terminal || always {
            self.out.write_all(b"\n")?;
        }
        self.out.flush()
    }
}

/// Whether a prompt ends inside reasoning, which the answer continues.
pub fn begins_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINKING[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(on: bool, thinking: bool, pieces: &[&str]) -> String {
        let mut out = Vec::new();
        let screen = Screen {
            out: &mut out,
            terminal: on,
            shaded: on,
            thinking: false,
            sanitizer: terminal::Sanitizer::default(),
            wrap: on.then(|| Wrap::new(80)),
        };
        let mut screen = screen.begun(thinking).unwrap();
        pieces.iter().for_each(|p| screen.text(p).unwrap());
        screen.end(false).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn thoughts_are_faint_on_a_terminal_alone() {
        let pieces = ["a", "<think>", "b ", "c</think>d", "e"];
        assert_eq!(
            shown(true, false, &pieces),
            "a\x1b[2m<think>b c</think>\x1b[0mde\n"
        );
        assert_eq!(shown(false, false, &pieces), pieces.concat());
        assert_eq!(
            shown(true, true, &["b</think>", "c"]),
            "\x1b[2mb</think>\x1b[0mc\n"
        );
        // Stopped inside the reasoning.
        assert_eq!(shown(true, true, &["b"]), "\x1b[2mb\x1b[0m\n");
        // A line end in two pieces, and half a line end.
        assert_eq!(
            shown(true, true, &["b\r", "\nc\r", "</think>d\r"]),
            "\x1b[2mb\nc\\r</think>\x1b[0md\\r\n"
        );
        // Escape sequences of the model do not reset the style.
        assert_eq!(
            shown(true, true, &["a\x1b[0mb"]),
            "\x1b[2ma\\u{1b}[0mb\x1b[0m\n"
        );
        assert_eq!(
            shown(false, false, &["a\x1b]52;c;YQ==\x07\r"]),
            "a\x1b]52;c;YQ==\x07\r"
        );
        assert!(begins_thinking("<|assistant|><think>\n") && !begins_thinking("<think></think>"));
    }
}
