//! Parser of arguments in Gemma's notation, `key:<|"|>text<|"|>,other:{list:[1,2]}}`. Emits JSON.

use super::parts::{Beginning, HeldText, ReplyPart, Search, escaped};
use serde_json::Value;

/// Maximum nesting depth of lists and objects; deeper nesting ends the arguments.
const MAX_DEPTH: usize = 64;
/// Maximum bytes of a key or a number; a longer one is truncated and treated as text.
const MAX_WORD_BYTES: usize = 1 << 10;

/// Streaming parser of a call's arguments after their opening brace.
pub struct BareArguments {
    quote: &'static str,
    /// Closing brackets of the open lists and objects.
    open: Vec<char>,
    phase: Phase,
    /// True while the innermost list or object is empty.
    first: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    /// Expects a key, or the end of an object.
    Key,
    Colon,
    /// Expects a value, or the end of a list.
    Value,
    /// Within a string, up to the quote.
    Text,
    /// Expects a comma, or the end of a list or object.
    Behind,
}

impl BareArguments {
    /// Creates a parser; `quote` delimits strings.
    pub fn new(quote: &'static str, parts: &mut Vec<ReplyPart>) -> BareArguments {
        parts.push(ReplyPart::Arguments("{".into()));
        BareArguments {
            quote,
            open: vec!['}'],
            phase: Phase::Key,
            first: true,
        }
    }
    /// Returns true after the closing brace of the arguments.
    pub fn is_done(&self) -> bool {
        self.open.is_empty()
    }
    /// Consumes one element of `held`. Returns false if more text is needed.
    pub fn step(&mut self, held: &mut HeldText, parts: &mut Vec<ReplyPart>) -> bool {
        if self.is_done() {
            return false;
        }
        let mut tell = |text: String| parts.push(ReplyPart::Arguments(text));
        if let Phase::Text = self.phase {
            let (before, found) = held.stream(&[self.quote], false);
            if !before.is_empty() {
                tell(escaped(&before));
            }
            if found.is_some() {
                tell("\"".into());
                self.phase = Phase::Behind;
            }
            return found.is_some();
        }
        held.trim();
        let Some(c) = held.text().chars().next() else {
            return false;
        };
        match self.phase {
            Phase::Behind if c == ',' => {
                held.split(1);
                self.phase = if self.open.last() == Some(&'}') {
                    Phase::Key
                } else {
                    Phase::Value
                };
            }
            // The comma is missing, or the closing bracket has the wrong kind.
            Phase::Behind | Phase::Key if matches!(c, '}' | ']') => {
                held.split(1);
                self.close(&mut tell);
            }
            Phase::Behind => {
                self.phase = if self.open.last() == Some(&'}') {
                    Phase::Key
                } else {
                    Phase::Value
                }
            }
            Phase::Value if c == ']' && self.open.last() == Some(&']') => {
                held.split(1);
                self.close(&mut tell);
            }
            Phase::Key if c == ',' => drop(held.split(1)),
            Phase::Key => {
                let Some(key) = self.word(held, &[":", "}"]) else {
                    return false;
                };
                let comma = self.comma();
                tell(format!(
                    "{comma}{}: ",
                    Value::from(key.replace(self.quote, ""))
                ));
                self.phase = Phase::Colon;
            }
            Phase::Colon => {
                if c == ':' {
                    held.split(1);
                }
                self.phase = Phase::Value;
            }
            Phase::Value => return self.value(c, held, &mut tell),
            Phase::Text => {}
        }
        true
    }
    fn value(&mut self, c: char, held: &mut HeldText, tell: &mut impl FnMut(String)) -> bool {
        let comma = if self.open.last() == Some(&']') {
            self.comma()
        } else {
            ""
        };
        match held.begins(self.quote) {
            Beginning::Whole(end) => {
                held.split(end);
                tell(format!("{comma}\""));
                self.phase = Phase::Text;
                return true;
            }
            Beginning::Part => return self.undo(comma),
            Beginning::Other => {}
        }
        if matches!(c, '{' | '[') {
            held.split(1);
            tell(format!("{comma}{c}"));
            self.open.push(if c == '{' { '}' } else { ']' });
            self.phase = if c == '{' { Phase::Key } else { Phase::Value };
            self.first = true;
            if self.open.len() > MAX_DEPTH {
                self.open
                    .drain(..)
                    .rev()
                    .for_each(|close| tell(close.into()));
            }
            return true;
        }
        let Some(word) = self.word(held, &[",", "}", "]"]) else {
            return self.undo(comma);
        };
        tell(format!("{comma}{}", scalar(&word)));
        self.first = false;
        self.phase = Phase::Behind;
        true
    }
    /// Restores `first` after an element that could not be parsed yet. Returns false.
    fn undo(&mut self, comma: &str) -> bool {
        if self.open.last() == Some(&']') {
            self.first = comma.is_empty();
        }
        false
    }
    /// Takes the text before the first of `ends`, which stays in `held`.
    fn word(&self, held: &mut HeldText, ends: &[&'static str]) -> Option<String> {
        match held.until_within(ends, MAX_WORD_BYTES) {
            Search::Found(word, end) => {
                let rest = held.take();
                held.push(end);
                held.push(&rest);
                Some(word.trim().to_owned())
            }
            Search::Far(word) => Some(word),
            Search::Open => None,
        }
    }
    fn comma(&mut self) -> &'static str {
        if std::mem::replace(&mut self.first, false) {
            ""
        } else {
            ", "
        }
    }
    fn close(&mut self, tell: &mut impl FnMut(String)) {
        if let Some(close) = self.open.pop() {
            tell(close.into());
        }
        self.first = false;
        self.phase = Phase::Behind;
    }
}

/// Parses a value without quotes: JSON, a Python constant, or otherwise a string.
fn scalar(word: &str) -> Value {
    match (serde_json::from_str(word), word) {
        (Ok(value), _) => value,
        (_, "True") => Value::Bool(true),
        (_, "False") => Value::Bool(false),
        (_, "None") => Value::Null,
        _ => word.into(),
    }
}
