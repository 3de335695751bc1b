//! Text that others wrote, for a terminal: what would steer it is shown, not sent.
//!
//! An escape sequence can write the clipboard, type answers to questions nobody asked, or hide lines; characters of
//! direction and those without width make a text read as another. All of them are single characters, so that nothing has
//! to be remembered from one piece of text to the next: an escape sequence without its ESC is plain text.

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

/// An answer of a model, on its way to a terminal: lines stay lines, and tabs tabs.
pub fn answer(text: &str) -> Cow<'_, str> {
    shown(text, &['\n', '\t'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_shown_instead() {
        assert_eq!(printable("a\x1b[2Jb\u{202e}\nü\t"), "a\\u{1b}[2Jb\\u{202e}\nü\\t");
        assert_eq!(answer("a\tb\r\n\x07\u{9b}\x7f"), "a\tb\\r\n\\u{7}\\u{9b}\\u{7f}");
        assert_eq!(answer("\x1b]52;c;cm0gLXJmIC8=\x07"), "\\u{1b}]52;c;cm0gLXJmIC8=\\u{7}");
        // What scripts are written with stays.
        for text in ["नमस्ते", "می\u{200c}خواهم", "👩\u{200d}💻️", "e\u{301}", "中文", "\u{fffd}"]
        {
            assert!(matches!(answer(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        for c in (0..=0x10_ffff).filter_map(char::from_u32).filter(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
            assert!(!answer(&format!("a{c}b")).contains(c), "{c:?}");
        }
    }
}
