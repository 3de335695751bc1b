//! Colour, where a person sees it: on a terminal, unless `NO_COLOR` asks for none.

use console::{StyledObject, style};
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
const THINKING: [&str; 2] = ["<think>", "</think>"];
const FAINT: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// An answer on its way to a terminal, with what the model thinks before it faint.
pub struct Shaded<W: Write> {
    out: W,
    on: bool,
    thinking: bool,
}

impl<W: Write + IsTerminal> Shaded<W> {
    /// Writes to `out`; `thinking` says whether the prompt has begun a thought.
    pub fn new(out: W, thinking: bool) -> io::Result<Shaded<W>> {
        let on = out.is_terminal() && console::colors_enabled();
        Shaded { out, on, thinking: false }.begun(thinking)
    }
}

impl<W: Write> Shaded<W> {
    fn begun(mut self, thinking: bool) -> io::Result<Shaded<W>> {
        if thinking {
            self.turn(true)?;
        }
        Ok(self)
    }
    fn turn(&mut self, thinking: bool) -> io::Result<()> {
        self.thinking = thinking;
        if self.on { self.out.write_all(if thinking { FAINT } else { PLAIN }.as_bytes()) } else { Ok(()) }
    }
    /// The end of the answer, wherever it broke off.
    pub fn end(&mut self) -> io::Result<()> {
        if self.thinking {
            self.turn(false)?;
        }
        self.out.flush()
    }
}

impl<W: Write> Write for Shaded<W> {
    // Pieces are those of tokens, and the marks are tokens of the models that think: none is cut in two.
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let mark = THINKING[usize::from(self.thinking)].as_bytes();
        let found = piece.windows(mark.len()).position(|w| w == mark);
        let Some(at) = found else { return self.out.write(piece) };
        if self.thinking {
            let end = at + mark.len();
            self.out.write_all(&piece[..end])?;
            self.turn(false)?;
            Ok(end)
        } else {
            self.out.write_all(&piece[..at])?;
            self.turn(true)?;
            self.out.write_all(mark)?;
            Ok(at + mark.len())
        }
    }
    fn flush(&mut self) -> io::Result<()> {
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

    fn shaded(on: bool, thinking: bool, pieces: &[&str]) -> String {
        let mut out = Vec::new();
        let mut shaded = Shaded { out: &mut out, on, thinking: false }.begun(thinking).unwrap();
        pieces.iter().for_each(|p| shaded.write_all(p.as_bytes()).unwrap());
        shaded.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn thoughts_are_faint_on_a_terminal_alone() {
        let pieces = ["a", "<think>", "b ", "c</think>d", "e"];
        assert_eq!(shaded(true, false, &pieces), "a\x1b[2m<think>b c</think>\x1b[0mde");
        assert_eq!(shaded(false, false, &pieces), pieces.concat());
        assert_eq!(shaded(true, true, &["b</think>", "c"]), "\x1b[2mb</think>\x1b[0mc");
        // Broken off in the middle of a thought.
        assert_eq!(shaded(true, true, &["b"]), "\x1b[2mb\x1b[0m");
        assert!(begins_thinking("<|assistant|><think>\n") && !begins_thinking("<think></think>"));
    }
}
