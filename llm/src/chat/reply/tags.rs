//! Arguments between tags, `<arg_key>k</arg_key><arg_value>v</arg_value>…`, told as JSON.

use super::parts::{Held, Part, Search, escaped, words};
use super::schemas::Schemas;
use serde_json::Value;

/// Most bytes of an argument's name: what is longer was none, and is passed over.
const KEY: usize = 1 << 10;

/// The texts of a call with tags.
#[derive(Clone, Copy)]
pub struct Tags {
    pub key: [&'static str; 2],
    pub value: [&'static str; 2],
    /// What ends the call, in words.
    pub close: &'static str,
}

/// The parser of a call's arguments.
pub struct TagArguments {
    tags: Tags,
    schemas: Schemas,
    tool: String,
    phase: Phase,
    keys: usize,
}

enum Phase {
    /// After the name or a value: another key, or the end.
    Between,
    Key,
    /// Between a key and its value.
    Gap(String),
    /// A value begins; its white space has not come yet.
    Start {
        text: bool,
    },
    /// A value that is told as it comes.
    Text,
    /// A value whose type shows at its end.
    Untyped,
    Done,
}

impl TagArguments {
    /// Of a call of that tool.
    pub fn new(tags: Tags, schemas: Schemas, tool: String) -> TagArguments {
        TagArguments { tags, schemas, tool, phase: Phase::Between, keys: 0 }
    }
    /// What may stand behind a name.
    pub fn behind_name(tags: &Tags) -> impl Iterator<Item = &'static str> + use<> {
        std::iter::once(tags.key[0]).chain(words(tags.close))
    }
    /// Has what closes the call come?
    pub fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }
    /// Behind the name this has come.
    pub fn begin(&mut self, found: &str, parts: &mut Vec<Part>) {
        parts.push(Part::Arguments("{".into()));
        if Self::behind_name(&self.tags).any(|text| text == found) {
            self.between(found, parts);
        }
    }
    /// One decision about `held`; was there one to make?
    pub fn step(&mut self, held: &mut Held, parts: &mut Vec<Part>) -> bool {
        let Tags { key, value, .. } = self.tags;
        match std::mem::replace(&mut self.phase, Phase::Between) {
            Phase::Between => {
                let markers: Vec<&'static str> = Self::behind_name(&self.tags).collect();
                // Nothing else is to stand here.
                let found = held.stream(&markers, false).1;
                found.inspect(|found| self.between(found, parts)).is_some()
            }
            Phase::Key => match held.until_within(&[key[1]], KEY) {
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
                let markers: Vec<&'static str> = std::iter::once(value[0]).chain(words(self.tags.close)).collect();
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
                    parts.push(Part::Arguments(inner));
                }
                if found.is_some() { true } else { self.stay(Phase::Text) }
            }
            Phase::Untyped => match held.until(&self.ends()) {
                Some((before, _)) => {
                    parts.push(Part::Arguments(typed(before).to_string()));
                    true
                }
                None => self.stay(Phase::Untyped),
            },
            Phase::Done => self.stay(Phase::Done),
        }
    }
    /// What ends a value: with its white space, or without.
    fn ends(&self) -> [&'static str; 2] {
        let close = self.tags.value[1].trim_end();
        [close, close.trim_start()]
    }
    fn stay(&mut self, phase: Phase) -> bool {
        self.phase = phase;
        false
    }
    /// A value of that name follows.
    fn open(&mut self, name: String, parts: &mut Vec<Part>) {
        let comma = if self.keys > 0 { ", " } else { "" };
        self.keys += 1;
        let text = self.schemas.is_string(&self.tool, &name);
        let quote = if text { "\"" } else { "" };
        parts.push(Part::Arguments(format!("{comma}{}: {quote}", Value::from(name))));
        self.phase = Phase::Start { text };
    }
    /// Drops the white space that a value begins with, if that is its tags'.
    fn start(&mut self, text: bool, held: &mut Held) -> bool {
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
    fn between(&mut self, found: &str, parts: &mut Vec<Part>) {
        self.phase = if found == self.tags.key[0] {
            Phase::Key
        } else {
            parts.push(Part::Arguments("}".into()));
            Phase::Done
        };
    }
}

/// A value that no schema calls a string: JSON, or one of Python's names, which templates write; a text otherwise.
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
