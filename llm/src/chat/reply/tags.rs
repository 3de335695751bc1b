//! Parser of tagged arguments, `<arg_key>k</arg_key><arg_value>v</arg_value>…`. Emits JSON.

use super::parts::{HeldText, ReplyPart, Search, escaped, words};
use super::schemas::Schemas;
use serde_json::Value;

/// Maximum bytes of an argument's name; a longer one is skipped.
const MAX_KEY_BYTES: usize = 1 << 10;

/// Delimiters of a call with tagged arguments.
#[derive(Clone, Copy)]
pub struct Tags {
    pub key: [&'static str; 2],
    pub value: [&'static str; 2],
    /// Closing text of the call.
    pub close: &'static str,
}

/// Streaming parser of a call's arguments.
pub struct TagArguments {
    tags: Tags,
    schemas: Schemas,
    tool: String,
    phase: Phase,
    keys: usize,
}

enum Phase {
    /// Expects a key, or the end of the call.
    Between,
    Key,
    Gap(String),
    /// Start of a value, before its white space was handled.
    Start {
        text: bool,
    },
    /// Within a string value, emitted as it arrives.
    Text,
    /// Within a value of a type that is known only at its end.
    Untyped,
    Done,
}

impl TagArguments {
    /// Creates a parser for a call of `tool`.
    pub fn new(tags: Tags, schemas: Schemas, tool: String) -> TagArguments {
        TagArguments {
            tags,
            schemas,
            tool,
            phase: Phase::Between,
            keys: 0,
        }
    }
    /// Returns the texts that can follow the tool's name.
    pub fn behind_name(tags: &Tags) -> impl Iterator<Item = &'static str> + use<> {
        std::iter::once(tags.key[0]).chain(words(tags.close))
    }
    /// Returns true after the closing text of the call.
    pub fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }
    /// Starts the arguments; `found` is the text after the tool's name.
    pub fn begin(&mut self, found: &str, parts: &mut Vec<ReplyPart>) {
        parts.push(ReplyPart::Arguments("{".into()));
        if Self::behind_name(&self.tags).any(|text| text == found) {
            self.between(found, parts);
        }
    }
    /// Consumes one element of `held`. Returns false if more text is needed.
    pub fn step(&mut self, held: &mut HeldText, parts: &mut Vec<ReplyPart>) -> bool {
        let Tags { key, value, .. } = self.tags;
        match std::mem::replace(&mut self.phase, Phase::Between) {
            Phase::Between => {
                let markers: Vec<&'static str> = Self::behind_name(&self.tags).collect();
                // Drops any other text.
                let found = held.stream(&markers, false).1;
                found.inspect(|found| self.between(found, parts)).is_some()
            }
            Phase::Key => match held.until_within(&[key[1]], MAX_KEY_BYTES) {
                Search::Found(name, _) => {
                    let name = name.trim().to_owned();
                    if value[0].trim().is_empty() {
                        self.open(name, parts)
                    } else {
                        self.phase = Phase::Gap(name)
                    }
                    true
                }
                Search::Far(_) => true,
                Search::Open => self.stay(Phase::Key),
            },
            Phase::Gap(name) => {
                let markers: Vec<&'static str> = std::iter::once(value[0])
                    .chain(words(self.tags.close))
                    .collect();
                match held.stream(&markers, false).1 {
                    Some(found) if found == value[0] => self.open(name, parts),
                    Some(found) => self.between(found, parts),
                    None => return self.stay(Phase::Gap(name)),
                }
                true
            }
            Phase::Start { text } => self.start(text, held),
            Phase::Text => {
                let (before, found) = held.stream(&self.ends(), false);
                let end = if found.is_some() { "\"" } else { "" };
                let inner = escaped(&before) + end;
                if !inner.is_empty() {
                    parts.push(ReplyPart::Arguments(inner));
                }
                if found.is_some() {
                    true
                } else {
                    self.stay(Phase::Text)
                }
            }
            Phase::Untyped => match held.until(&self.ends()) {
                Some((before, _)) => {
                    parts.push(ReplyPart::Arguments(typed(before).to_string()));
                    true
                }
                None => self.stay(Phase::Untyped),
            },
            Phase::Done => self.stay(Phase::Done),
        }
    }
    /// Returns the closing text of a value, with and without its white space.
    fn ends(&self) -> [&'static str; 2] {
        let close = self.tags.value[1].trim_end();
        [close, close.trim_start()]
    }
    fn stay(&mut self, phase: Phase) -> bool {
        self.phase = phase;
        false
    }
    /// Starts the value of the argument `name`.
    fn open(&mut self, name: String, parts: &mut Vec<ReplyPart>) {
        let comma = if self.keys > 0 { ", " } else { "" };
        self.keys += 1;
        let text = self.schemas.is_string(&self.tool, &name);
        let quote = if text { "\"" } else { "" };
        parts.push(ReplyPart::Arguments(format!(
            "{comma}{}: {quote}",
            Value::from(name)
        )));
        self.phase = Phase::Start { text };
    }
    /// Drops leading white space that belongs to the value's opening text.
    fn start(&mut self, text: bool, held: &mut HeldText) -> bool {
        let value = self.tags.value[0];
        let space = &value[value.trim_end().len()..];
        if held.text().len() < space.len() && space.starts_with(held.text()) {
            return self.stay(Phase::Start { text });
        }
        if held.text().starts_with(space) {
            held.split(space.len());
        }
        self.phase = if text { Phase::Text } else { Phase::Untyped };
        true
    }
    fn between(&mut self, found: &str, parts: &mut Vec<ReplyPart>) {
        self.phase = if found == self.tags.key[0] {
            Phase::Key
        } else {
            parts.push(ReplyPart::Arguments("}".into()));
            Phase::Done
        };
    }
}

/// Parses a value that no schema declares as a string: JSON, a Python constant,
/// or otherwise a string.
fn typed(text: String) -> Value {
    let trimmed = text.trim();
    match (serde_json::from_str(trimmed), trimmed) {
        (Ok(value), _) => value,
        (_, "True") => Value::Bool(true),
        (_, "False") => Value::Bool(false),
        (_, "None") => Value::Null,
        _ => Value::String(text),
    }
}
