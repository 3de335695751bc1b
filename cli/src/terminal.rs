//! Text that others wrote, for a terminal: what would steer it is shown, not sent.
//!
//! An escape sequence can write the clipboard, type answers to questions nobody asked, or hide lines; characters of
//! direction and those without width make a text read as another. All of them are single characters: an escape sequence
//! without its ESC is plain text, wherever a piece of text ends. Only a line's end may be two characters.

use std::borrow::Cow;

/// Would a character steer a terminal, or disguise the text around it?
fn steers(c: char) -> bool {
    match c {
        c if c.is_control() => true,
        // Marks, embeddings, overrides and isolates of direction.
        '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        // Line and paragraph separators, which some terminals take for line ends.
        '\u{2028}'..='\u{2029}' => true,
        // Without width. The joiners U+200C and U+200D are not among them: scripts and emoji need them.
        '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{feff}' => true,
        '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' => true,
        _ => false,
    }
}

/// `text` with every character that steers, but for those in `but`, written as `\u{1b}`, `\r` or `\t`.
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

/// Text from a file, a model's metadata or a hub, for a message: lines stay lines.
pub fn printable(text: &str) -> String {
    shown(text, &['\n']).into_owned()
}

/// What stays in an answer: lines, tabs, and the marks that answers in Arabic and Hebrew need. A mark gives its place a
/// direction and ends nothing; embeddings, overrides and isolates reorder what is around them.
const IN_ANSWERS: [char; 5] = ['\n', '\t', '\u{61c}', '\u{200e}', '\u{200f}'];

/// An answer of a model, on its way to a terminal in pieces.
#[derive(Default)]
pub struct Answer {
    /// A carriage return has ended the last piece: if the next begins with a line feed, it is half of a line's end.
    held: bool,
}

impl Answer {
    /// What to write for the next piece. Carriage returns are dropped before a line feed, and shown elsewhere.
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
    /// What to write once the last piece was written.
    pub fn rest(&mut self) -> Cow<'static, str> {
        shown(if std::mem::take(&mut self.held) { "\r" } else { "" }, &IN_ANSWERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> String {
        pieces(&[text])
    }

    fn pieces(pieces: &[&str]) -> String {
        let mut answer = Answer::default();
        let mut out: String = pieces.iter().map(|piece| answer.piece(piece)).collect();
        out.push_str(&answer.rest());
        assert_eq!(answer.rest(), "");
        out
    }

    #[test]
    fn lines_of_answers_may_end_as_in_dos() {
        assert_eq!(answer("a\r\nb\r\n\r\n"), "a\nb\n\n");
        assert_eq!(pieces(&["a\r", "\nb\r\n", "\r", "", "\n\r", "\n"]), "a\nb\n\n\n");
        // Alone it would go back to the line's beginning, and write over what is there.
        assert_eq!(pieces(&["safe\rrm", "x\r", "y\r\r", "\n", "z\r"]), "safe\\rrmx\\ry\\r\nz\\r");
        let mut answer = Answer::default();
        assert_eq!((answer.piece("a\r").as_ref(), answer.piece("\n").as_ref()), ("a", "\n"));
    }

    #[test]
    fn marks_of_direction_stay_in_answers_alone() {
        for mark in ['\u{61c}', '\u{200e}', '\u{200f}'] {
            let text = format!("שלום{mark}!");
            assert_eq!(answer(&text), text);
            assert!(!printable(&text).contains(mark));
        }
        for reorders in ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}') {
            assert!(!answer(&format!("a{reorders}b")).contains(reorders), "{reorders:?}");
        }
    }

    #[test]
    fn what_steers_a_terminal_is_shown_instead() {
        assert_eq!(printable("a\x1b[2Jb\u{202e}\nü\t"), "a\\u{1b}[2Jb\\u{202e}\nü\\t");
        assert_eq!(answer("a\tb\r\n\x07\u{9b}\x7f"), "a\tb\n\\u{7}\\u{9b}\\u{7f}");
        assert_eq!(answer("\x1b]52;c;cm0gLXJmIC8=\x07"), "\\u{1b}]52;c;cm0gLXJmIC8=\\u{7}");
        // What scripts are written with stays.
        for text in ["नमस्ते", "می\u{200c}خواهم", "👩\u{200d}💻️", "e\u{301}", "中文", "\u{fffd}"]
        {
            assert!(matches!(Answer::default().piece(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        for c in (0..=0x10_ffff).filter_map(char::from_u32).filter(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
            assert!(!answer(&format!("a{c}b")).contains(c), "{c:?}");
        }
    }
}
