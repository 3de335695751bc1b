//! Arguments in Gemma's notation, `key:<|"|>text<|"|>,other:{list:[1,2]}}`, told as JSON.

use super::parts::{Beginning, Held, Part, Search, escaped};
use serde_json::Value;

/// Most levels of lists and objects: at what is deeper the arguments end.
const DEPTH: usize = 64;
/// Most bytes of a key, or of a number: what is longer is a text, up to there.
const WORD: usize = 1 << 10;

/// The parser of a call's arguments, behind the brace that opens them.
pub struct BareArguments {
    quote: &'static str,
    /// What closes the lists and objects that are open.
    open: Vec<char>,
    phase: Phase,
    /// Nothing of the innermost list or object has come yet.
    first: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    /// A key, or the end of an object.
    Key,
    /// Behind a key.
    Colon,
    /// A value, or the end of a list.
    Value,
    /// A text, up to the quote.
    Text,
    /// A comma, or an end.
    Behind,
}

impl BareArguments {
    /// Strings stand between two of these.
    pub fn new(quote: &'static str, parts: &mut Vec<Part>) -> BareArguments {
        parts.push(Part::Arguments("{".into()));
        BareArguments { quote, open: vec!['}'], phase: Phase::Key, first: true }
    }
    /// Has the brace come that closes them?
    pub fn is_done(&self) -> bool {
        self.open.is_empty()
    }
    /// One decision about `held`; was there one to make?
    pub fn step(&mut self, held: &mut Held, parts: &mut Vec<Part>) -> bool {
        if self.is_done() {
            return false;
        }
        let mut tell = |text: String| parts.push(Part::Arguments(text));
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
        let Some(c) = held.text().chars().next() else { return false };
        match self.phase {
            Phase::Behind if c == ',' => {
                held.split(1);
                self.phase = if self.open.last() == Some(&'}') { Phase::Key } else { Phase::Value };
            }
            // A comma is missing, or what closes is the other one.
            Phase::Behind | Phase::Key if matches!(c, '}' | ']') => {
                held.split(1);
                self.close(&mut tell);
            }
            Phase::Behind => self.phase = if self.open.last() == Some(&'}') { Phase::Key } else { Phase::Value },
            Phase::Value if c == ']' && self.open.last() == Some(&']') => {
                held.split(1);
                self.close(&mut tell);
            }
            Phase::Key if c == ',' => drop(held.split(1)),
            Phase::Key => {
                let Some(key) = self.word(held, &[":", "}"]) else { return false };
                let comma = self.comma();
                tell(format!("{comma}{}: ", Value::from(key.replace(self.quote, ""))));
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
    fn value(&mut self, c: char, held: &mut Held, tell: &mut impl FnMut(String)) -> bool {
        let comma = if self.open.last() == Some(&']') { self.comma() } else { "" };
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
            if self.open.len() > DEPTH {
                self.open.drain(..).rev().for_each(|close| tell(close.into()));
            }
            return true;
        }
        let Some(word) = self.word(held, &[",", "}", "]"]) else { return self.undo(comma) };
        tell(format!("{comma}{}", scalar(&word)));
        self.first = false;
        self.phase = Phase::Behind;
        true
    }
    /// Nothing was decided: whether a comma comes first is so again.
    fn undo(&mut self, comma: &str) -> bool {
        if self.open.last() == Some(&']') {
            self.first = comma.is_empty();
        }
        false
    }
    /// What stands before one of these, which stay.
    fn word(&self, held: &mut Held, ends: &[&'static str]) -> Option<String> {
        match held.until_within(ends, WORD) {
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
        if std::mem::replace(&mut self.first, false) { "" } else { ", " }
    }
    fn close(&mut self, tell: &mut impl FnMut(String)) {
        if let Some(close) = self.open.pop() {
            tell(close.into());
        }
        self.first = false;
        self.phase = Phase::Behind;
    }
}

/// A value without quotes: JSON where it is, or one of Python's names; a text otherwise.
fn scalar(word: &str) -> Value {
    match (serde_json::from_str(word), word) {
        (Ok(value), _) => value,
        (_, "True") => Value::Bool(true),
        (_, "False") => Value::Bool(false),
        (_, "None") => Value::Null,
        _ => word.into(),
    }
}
