//! Escapes control characters of untrusted text for a terminal.
//!
//! Escape sequences can write the clipboard, type input or hide lines; bidirectional and zero-width
//! characters disguise text. Escaping single characters suffices, since an escape sequence without
//! its ESC is plain text. Only a line end may have two characters.

use std::borrow::Cow;

/// Whether a character controls a terminal or disguises the text around it.
fn steers(c: char) -> bool {
    match c {
        c if c.is_control() => true,
        // Bidirectional marks, embeddings, overrides and isolates.
        '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        // Line and paragraph separators, line ends in some terminals.
        '\u{2028}'..='\u{2029}' => true,
        // Zero-width, except the joiners U+200C and U+200D, which scripts and emoji need.
        '\u{ad}'
        | '\u{180e}'
        | '\u{200b}'
        | '\u{2060}'..='\u{2065}'
        | '\u{206a}'..='\u{206f}'
        | '\u{feff}' => true,
        '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' => true,
        _ => false,
    }
}

/// Escapes control characters except those in `but`, as `\u{1b}`, `\r` or `\t`.
fn shown<'t>(text: &'t str, but: &[char]) -> Cow<'t, str> {
    let hidden = |c: char| steers(c) && !but.contains(&c);
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match hidden(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Escapes text of a file, model or hub for a message; line feeds stay.
pub fn printable(text: &str) -> String {
    shown(text, &['\n']).into_owned()
}

/// Characters that stay in an answer: line feeds, tabs, and directional marks, which Arabic and
/// Hebrew need and which, unlike embeddings and overrides, reorder no other text.
const IN_ANSWERS: [char; 5] = ['\n', '\t', '\u{61c}', '\u{200e}', '\u{200f}'];

/// Escapes a model's answer piece by piece.
#[derive(Default)]
pub struct Sanitizer {
    /// Whether the last piece ended with a carriage return, perhaps half of a line end.
    held: bool,
}

impl Sanitizer {
    /// Returns the escaped piece. Carriage returns are dropped before a line feed, else escaped.
    pub fn piece<'t>(&mut self, piece: &'t str) -> Cow<'t, str> {
        if !self.held && !piece.contains('\r') {
            return shown(piece, &IN_ANSWERS);
        }
        let mut text = String::from(if self.held { "\r" } else { "" });
        text.push_str(piece);
        self.held = text.ends_with('\r');
        if self.held {
            text.pop();
        }
        Cow::Owned(shown(&text.replace("\r\n", "\n"), &IN_ANSWERS).into_owned())
    }
    /// Returns the text that is held back after the last piece.
    pub fn rest(&mut self) -> Cow<'static, str> {
        shown(
            if std::mem::take(&mut self.held) {
                "\r"
            } else {
                ""
            },
            &IN_ANSWERS,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> String {
        pieces(&[text])
    }

    fn pieces(pieces: &[&str]) -> String {
        let mut answer = Sanitizer::default();
        let mut out: String = pieces.iter().map(|piece| answer.piece(piece)).collect();
        out.push_str(&answer.rest());
        assert_eq!(answer.rest(), "");
        out
    }

    #[test]
    fn lines_of_answers_may_end_as_in_dos() {
        assert_eq!(answer("a\r\nb\r\n\r\n"), "a\nb\n\n");
        assert_eq!(
            pieces(&["a\r", "\nb\r\n", "\r", "", "\n\r", "\n"]),
            "a\nb\n\n\n"
        );
        // A lone carriage return would overwrite the line.
        assert_eq!(
            pieces(&["safe\rrm", "x\r", "y\r\r", "\n", "z\r"]),
            "safe\\rrmx\\ry\\r\nz\\r"
        );
        let mut answer = Sanitizer::default();
        assert_eq!(
            (answer.piece("a\r").as_ref(), answer.piece("\n").as_ref()),
            ("a", "\n")
        );
    }

    #[test]
    fn marks_of_direction_stay_in_answers_alone() {
        for mark in ['\u{61c}', '\u{200e}', '\u{200f}'] {
            let text = format!("שלום{mark}!");
            assert_eq!(answer(&text), text);
            assert!(!printable(&text).contains(mark));
        }
        for reorders in ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}') {
            assert!(
                !answer(&format!("a{reorders}b")).contains(reorders),
                "{reorders:?}"
            );
        }
    }

    #[test]
    fn what_steers_a_terminal_is_shown_instead() {
        assert_eq!(
            printable("a\x1b[2Jb\u{202e}\nü\t"),
            "a\\u{1b}[2Jb\\u{202e}\nü\\t"
        );
        assert_eq!(
            answer("a\tb\r\n\x07\u{9b}\x7f"),
            "a\tb\n\\u{7}\\u{9b}\\u{7f}"
        );
        assert_eq!(
            answer("\x1b]52;c;cm0gLXJmIC8=\x07"),
            "\\u{1b}]52;c;cm0gLXJmIC8=\\u{7}"
        );
        // Characters of scripts and emoji stay.
        for text in [
            "नमस्ते",
            "می\u{200c}خواهم",
            "👩\u{200d}💻️",
            "e\u{301}",
            "中文",
            "\u{fffd}",
        ] {
            assert!(
                matches!(Sanitizer::default().piece(text), Cow::Borrowed(same) if same == text),
                "{text}"
            );
        }
        for c in (0..=0x10_ffff)
            .filter_map(char::from_u32)
            .filter(|c| c.is_control() && !matches!(c, '\n' | '\t'))
        {
            assert!(!answer(&format!("a{c}b")).contains(c), "{c:?}");
        }
    }
}
