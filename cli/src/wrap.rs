//! Word wrap for a terminal. A word is held back until it is complete, one or two tokens later.

/// Columns between tab stops.
const TAB: usize = 8;
/// Fence of a code block, inside which lines are not wrapped.
const FENCE: &str = "```";

/// Wraps an answer piece by piece.
pub struct Wrap {
    columns: usize,
    /// Columns used in the current line.
    at: usize,
    /// The word that is not complete yet.
    word: String,
    /// Whether the text is inside a code block.
    fenced: bool,
}

impl Wrap {
    /// Wraps at `columns` columns.
    pub fn new(columns: usize) -> Wrap {
        Wrap {
            columns: columns.max(1),
            at: 0,
            word: String::new(),
            fenced: false,
        }
    }
    /// Returns the text to write after this piece.
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
                    let next = if c == '\t' {
                        (self.at / TAB + 1) * TAB
                    } else {
                        self.at + 1
                    };
                    // White space beyond the last column becomes the line end.
                    if self.fenced || next <= self.columns {
                        out.push(c);
                        self.at = next;
                    } else {
                        self.at = self.columns;
                    }
                }
                c => {
                    self.word.push(c);
                    // A line may end after any wide character: their scripts have no spaces.
                    let width = width(&self.word);
                    if width >= self.columns
                        || console::measure_text_width(c.encode_utf8(&mut [0; 4])) > 1
                    {
                        self.end_word(&mut out);
                    }
                }
            }
        }
        out
    }
    /// Returns the incomplete word, before other output.
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
            let pieces: Vec<&str> = (0..text.len())
                .step_by(size)
                .map(|at| &text[at..text.len().min(at + size)])
                .collect();
            assert_eq!(
                wrapped(12, &pieces),
                "The capital \nof Norway is\nOslo.",
                "pieces of {size}"
            );
        }
        assert_eq!(wrapped(80, &[text]), text);
        assert_eq!(wrapped(5, &["ab\n\n", "cd ef", " gh"]), "ab\n\ncd ef\ngh");
        // A word longer than a line fills lines.
        assert_eq!(wrapped(4, &["a abcdefghij b"]), "a \nabcd\nefgh\nij b");
        // Wide characters take two columns and are words of their own.
        assert_eq!(wrapped(5, &["東京は", "首都"]), "東京\nは首\n都");
        let mut wrap = Wrap::new(9);
        assert_eq!(
            (wrap.piece("ab"), wrap.piece(" c"), wrap.rest()),
            ("".into(), "ab ".into(), "c".into())
        );
    }

    #[test]
    fn code_stays_as_it_is() {
        let code = "```\nlet x = 1 + 2 + 3;\n```\n";
        assert_eq!(
            wrapped(8, &[code, "one two three"]),
            format!("{code}one two \nthree")
        );
    }
}
