//! Lines of a terminal that end between words. A word is held back until it is whole, which is a token or two.

/// Columns from one tab stop to the next.
const TAB: usize = 8;
/// Before and after text that is written as it is: code.
const FENCE: &str = "```";

/// An answer on its way to a terminal in pieces.
pub struct Wrap {
    columns: usize,
    /// Columns of this line that are taken.
    at: usize,
    /// What has come of a word.
    word: String,
    /// Is it code? Its lines are broken by the terminal, and copied as they are.
    fenced: bool,
}

impl Wrap {
    /// For a terminal of so many columns.
    pub fn new(columns: usize) -> Wrap {
        Wrap { columns: columns.max(1), at: 0, word: String::new(), fenced: false }
    }
    /// What to write once this has come, too.
    pub fn piece(&mut self, piece: &str) -> String {
        let mut out = String::with_capacity(piece.len() + 1);
        for c in piece.chars() {
            match c {
                '\n' => {
                    self.end_word(&mut out);
                    out.push(c);
                    self.at = 0;
                }
                c if c.is_whitespace() => {
                    self.end_word(&mut out);
                    let next = if c == '\t' { (self.at / TAB + 1) * TAB } else { self.at + 1 };
                    // One that has no room stands for the line's end.
                    if self.fenced || next <= self.columns {
                        out.push(c);
                        self.at = next;
                    } else {
                        self.at = self.columns;
                    }
                }
                c => {
                    self.word.push(c);
                    // A line may end behind each character of scripts without spaces, which are wide.
                    let width = width(&self.word);
                    if width >= self.columns || console::measure_text_width(c.encode_utf8(&mut [0; 4])) > 1 {
                        self.end_word(&mut out);
                    }
                }
            }
        }
        out
    }
    /// What to write before something else is written.
    pub fn rest(&mut self) -> String {
        let mut out = String::new();
        self.end_word(&mut out);
        out
    }
    fn end_word(&mut self, out: &mut String) {
        let word = std::mem::take(&mut self.word);
        if self.at == 0 && word.starts_with(FENCE) {
            self.fenced = !self.fenced;
        }
        let width = width(&word);
        if !self.fenced && self.at > 0 && width > 0 && self.at + width > self.columns {
            out.push('\n');
            self.at = 0;
        }
        out.push_str(&word);
        self.at += width;
    }
}

fn width(word: &str) -> usize {
    console::measure_text_width(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(columns: usize, pieces: &[&str]) -> String {
        let mut wrap = Wrap::new(columns);
        let mut out: String = pieces.iter().map(|piece| wrap.piece(piece)).collect();
        out.push_str(&wrap.rest());
        out
    }

    #[test]
    fn lines_end_between_words_however_they_come() {
        let text = "The capital of Norway is Oslo.";
        for size in 1..text.len() {
            let pieces: Vec<&str> =
                (0..text.len()).step_by(size).map(|at| &text[at..text.len().min(at + size)]).collect();
            assert_eq!(wrapped(12, &pieces), "The capital \nof Norway is\nOslo.", "pieces of {size}");
        }
        assert_eq!(wrapped(80, &[text]), text);
        assert_eq!(wrapped(5, &["ab\n\n", "cd ef", " gh"]), "ab\n\ncd ef\ngh");
        // A word that no line holds fills them.
        assert_eq!(wrapped(4, &["a abcdefghij b"]), "a \nabcd\nefgh\nij b");
        // Wide characters take two columns and are words.
        assert_eq!(wrapped(5, &["東京は", "首都"]), "東京\nは首\n都");
        let mut wrap = Wrap::new(9);
        assert_eq!((wrap.piece("ab"), wrap.piece(" c"), wrap.rest()), ("".into(), "ab ".into(), "c".into()));
    }

    #[test]
    fn code_stays_as_it_is() {
        let code = "```\nlet x = 1 + 2 + 3;\n```\n";
        assert_eq!(wrapped(8, &[code, "one two three"]), format!("{code}one two \nthree"));
    }
}
