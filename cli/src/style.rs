//! Colour, where a person sees it: on a terminal, unless `NO_COLOR` asks for none.

use crate::terminal;
use crate::wrap::Wrap;
use console::{StyledObject, Term, style};
use std::io::{self, IsTerminal, Write};

/// What matters less, on standard error.
pub fn faint(text: &str) -> StyledObject<&str> {
    style(text).for_stderr().dim()
}

/// A failure, on standard error.
pub fn alarming(text: &str) -> StyledObject<&str> {
    style(text).for_stderr().red().bold()
}

/// A way out, on standard error.
pub fn helpful(text: &str) -> StyledObject<&str> {
    style(text).for_stderr().cyan()
}

/// What the user is asked with.
pub fn prompting(text: &str) -> StyledObject<&str> {
    style(text).green().bold()
}

/// What models put around what they think before they answer.
pub const THINKING: [&str; 2] = ["<think>", "</think>"];
const FAINT: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Where an answer is written. On a terminal nothing in it steers that, and what the model thinks before it may be faint;
/// a program gets the bytes as they are.
pub struct Screen<W: Write> {
    out: W,
    /// Does a person read it?
    terminal: bool,
    /// Are thoughts faint?
    shaded: bool,
    thinking: bool,
    answer: terminal::Answer,
    /// Between words, where a person reads it.
    wrap: Option<Wrap>,
}

impl<W: Write + IsTerminal> Screen<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Screen<W> {
        let terminal = out.is_terminal();
        let columns = || Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        let wrap = terminal.then(columns).flatten().map(Wrap::new);
        Screen { out, terminal, shaded: false, thinking: false, answer: terminal::Answer::default(), wrap }
    }
    /// The same with thoughts faint; `thinking` says whether the prompt has begun one.
    pub fn shaded(out: W, thinking: bool) -> io::Result<Screen<W>> {
        let shaded = out.is_terminal() && console::colors_enabled();
        Screen { shaded, ..Screen::new(out) }.begun(thinking)
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
        if self.shaded { self.out.write_all(if thinking { FAINT } else { PLAIN }.as_bytes()) } else { Ok(()) }
    }
    /// A piece of the answer. Pieces are those of tokens, and the marks of thoughts are tokens of the models that think:
    /// none is cut in two.
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
        let shown = if self.terminal { self.answer.piece(text) } else { text.into() };
        match &mut self.wrap {
            Some(wrap) => self.out.write_all(wrap.piece(&shown).as_bytes()),
            None => self.out.write_all(shown.as_bytes()),
        }
    }
    /// Writes what is held back of a word.
    fn end_word(&mut self) -> io::Result<()> {
        let rest = self.wrap.as_mut().map(Wrap::rest).unwrap_or_default();
        self.out.write_all(rest.as_bytes())
    }
    /// The end of the answer, wherever it broke off: with a line's end where a person reads it, or `always`.
    pub fn end(mut self, always: bool) -> io::Result<()> {
        self.end_word()?;
        self.out.write_all(self.answer.rest().as_bytes())?;
        if self.thinking {
            self.turn(false)?;
        }
        if self.terminal || always {
            self.out.write_all(b"\n")?;
        }
        self.out.flush()
    }
}

/// Does a prompt end in a thought that the answer goes on with?
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
            answer: terminal::Answer::default(),
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
        assert_eq!(shown(true, false, &pieces), "a\x1b[2m<think>b c</think>\x1b[0mde\n");
        assert_eq!(shown(false, false, &pieces), pieces.concat());
        assert_eq!(shown(true, true, &["b</think>", "c"]), "\x1b[2mb</think>\x1b[0mc\n");
        // Broken off in the middle of a thought.
        assert_eq!(shown(true, true, &["b"]), "\x1b[2mb\x1b[0m\n");
        // A line's end that comes in two pieces, and half of one.
        assert_eq!(shown(true, true, &["b\r", "\nc\r", "</think>d\r"]), "\x1b[2mb\nc\\r</think>\x1b[0md\\r\n");
        // What the model writes does not turn them off.
        assert_eq!(shown(true, true, &["a\x1b[0mb"]), "\x1b[2ma\\u{1b}[0mb\x1b[0m\n");
        assert_eq!(shown(false, false, &["a\x1b]52;c;YQ==\x07\r"]), "a\x1b]52;c;YQ==\x07\r");
        assert!(begins_thinking("<|assistant|><think>\n") && !begins_thinking("<think></think>"));
    }
}
