//! A call in GLM's tags: `name<arg_key>k</arg_key><arg_value>v</arg_value>…</tool_call>`, its arguments told as JSON.

use super::parts::{Part, take_until};
use gristmill_llm::chat::markup::{Arguments, Markup, TAGS};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Which arguments of which tools are strings: a value between tags does not say whether `7` is a number or a text.
#[derive(Clone, Debug, Default)]
pub struct Schemas {
    /// Of each tool, the names of its parameters that are strings.
    strings: Arc<HashMap<String, HashSet<String>>>,
}

impl Schemas {
    /// Of tools, each with its name and the JSON schema of its parameters.
    pub fn new<'t>(tools: impl Iterator<Item = (&'t str, Option<&'t Value>)>) -> Schemas {
        let strings = tools.map(|(name, parameters)| {
            let properties = parameters.and_then(|p| p.get("properties")).and_then(Value::as_object);
            let strings = properties.into_iter().flatten().filter(|(_, schema)| is_string(schema));
            (name.to_owned(), strings.map(|(key, _)| key.clone()).collect())
        });
        Schemas { strings: Arc::new(strings.collect()) }
    }
    fn is_string(&self, tool: &str, key: &str) -> bool {
        self.strings.get(tool).is_some_and(|strings| strings.contains(key))
    }
}

fn is_string(schema: &Value) -> bool {
    let all = |values: &Value| values.as_array().is_some_and(|v| !v.is_empty() && v.iter().all(Value::is_string));
    schema.get("type").is_some_and(|kind| kind == "string")
        || schema.get("type").is_none() && schema.get("enum").is_some_and(all)
}

/// The parser of one call.
pub struct TagsCall {
    close: &'static str,
    key: [&'static str; 2],
    value: [&'static str; 2],
    schemas: Schemas,
    phase: Phase,
    name: String,
    keys: usize,
}

enum Phase {
    Name,
    /// After the name or a value: another key, or the end.
    Between,
    Key,
    /// Between a key and its value.
    Gap(String),
    /// A value that is told as it comes.
    Text,
    /// A value whose type shows at its end.
    Untyped,
    Done,
}

impl TagsCall {
    /// After what opens a call in that markup; where that has no tags, in GLM's.
    pub fn new(markup: &Markup, schemas: Schemas) -> TagsCall {
        let pairs = |arguments: Arguments| match arguments {
            Arguments::Tags { key, value } => Some((key, value)),
            Arguments::Json => None,
        };
        let (key, value) = pairs(markup.arguments).or(pairs(TAGS.arguments)).unwrap_or_default();
        TagsCall { close: markup.call[1], key, value, schemas, phase: Phase::Name, name: String::new(), keys: 0 }
    }
    /// Has what closes it come?
    pub fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }
    /// The text, of which `held` is left, if it was no call after all.
    pub fn abandon(self, held: &str) -> Option<String> {
        matches!(self.phase, Phase::Name).then(|| self.name + held)
    }
    /// One decision about `held`; was there one to make?
    pub fn step(&mut self, held: &mut String, parts: &mut Vec<Part>) -> bool {
        let markers: &[&'static str] = &match self.phase {
            Phase::Name | Phase::Between => vec![self.key[0], self.close],
            Phase::Key => vec![self.key[1]],
            Phase::Gap(_) => vec![self.value[0], self.close],
            Phase::Text | Phase::Untyped => vec![self.value[1]],
            Phase::Done => return false,
        };
        if !matches!(self.phase, Phase::Text) && !markers.iter().any(|marker| held.contains(*marker)) {
            return false;
        }
        let (before, found) = take_until(held, markers, false);
        match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Name => {
                self.name = before.trim().to_owned();
                parts.push(Part::Call(self.name.clone()));
                parts.push(Part::Arguments("{".into()));
                self.between(found, parts);
            }
            Phase::Between => self.between(found, parts),
            Phase::Key => self.phase = Phase::Gap(before.trim().to_owned()),
            Phase::Gap(_) if found == Some(self.close) => self.between(found, parts),
            Phase::Gap(key) => {
                let comma = if self.keys > 0 { ", " } else { "" };
                self.keys += 1;
                let text = self.schemas.is_string(&self.name, &key);
                let quote = if text { "\"" } else { "" };
                parts.push(Part::Arguments(format!("{comma}{}: {quote}", Value::from(key))));
                self.phase = if text { Phase::Text } else { Phase::Untyped };
            }
            Phase::Text => {
                let quoted = Value::from(before).to_string();
                let end = if found.is_some() { "\"" } else { "" };
                let inner = format!("{}{end}", &quoted[1..quoted.len() - 1]);
                if !inner.is_empty() {
                    parts.push(Part::Arguments(inner));
                }
                self.phase = if found.is_some() { Phase::Between } else { Phase::Text };
            }
            Phase::Untyped => {
                let value = serde_json::from_str(before.trim()).unwrap_or(Value::String(before));
                parts.push(Part::Arguments(value.to_string()));
                self.phase = Phase::Between;
            }
            Phase::Done => {}
        }
        found.is_some()
    }
    fn between(&mut self, found: Option<&str>, parts: &mut Vec<Part>) {
        self.phase = if found == Some(self.close) {
            parts.push(Part::Arguments("}".into()));
            Phase::Done
        } else {
            Phase::Key
        };
    }
}
