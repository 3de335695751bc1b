//! How much of a schema there may be. Compiling one cannot be broken off, takes stack for each level of it, and in places time by the
//! square: what would take seconds is refused before.

use serde_json::Value;
use std::collections::HashSet;

/// Levels of JSON that the compiler may be within at a time: a chain of 1,000 references is 6,000 of them, and takes up to 16 MiB of its
/// stack.
const LEVELS: usize = 8_000;
/// Bytes of stack for that, with a margin. The system gives what is touched only.
pub const STACK: usize = 64 << 20;
/// Values in all: 10,000 of an enumeration take a quarter of a second.
const VALUES: usize = 50_000;
/// Properties of one object: the time goes by the square, and 2,000 take 2 s.
const PROPERTIES: usize = 1_000;
/// Alternatives of all `oneOf`, each of which is compared with each: 20,000 take 6 s.
const ALTERNATIVES: usize = 2_000;
/// Patterns of names of properties, each of which is intersected with each: 300 take 26 s.
const PATTERNS: usize = 32;
/// The same three where schemas are intersected, which multiplies what they have.
const COMBINED: (usize, usize, usize) = (200, 24, 1);

/// Does it refer to anything? What does not cannot refer to itself alone.
pub fn refers(schema: &Value) -> bool {
    match schema {
        Value::Array(entries) => entries.iter().any(refers),
        Value::Object(members) => members.contains_key("$ref") || members.values().any(refers),
        _ => false,
    }
}

/// What the schemas of a request have.
#[derive(Default)]
pub struct Tally<'s> {
    values: usize,
    depth: usize,
    references: HashSet<&'s str>,
    properties: usize,
    alternatives: usize,
    patterns: usize,
    combines: bool,
}

impl<'s> Tally<'s> {
    /// One more schema. What only looks like a part of one counts too.
    pub fn add(&mut self, schema: &'s Value) {
        self.walk(schema, 1);
    }
    fn walk(&mut self, value: &'s Value, depth: usize) {
        self.values += 1;
        self.depth = self.depth.max(depth);
        match value {
            Value::Array(entries) => entries.iter().for_each(|entry| self.walk(entry, depth + 1)),
            Value::Object(members) => {
                let applied = ["allOf", "anyOf", "oneOf", "$ref"].iter().filter(|key| members.contains_key(**key));
                self.combines |= members.contains_key("allOf") || applied.count() > 1;
                for (key, member) in members {
                    self.keyword(key, member);
                    self.walk(member, depth + 1);
                }
            }
            _ => {}
        }
    }
    fn keyword(&mut self, key: &str, member: &'s Value) {
        match (key, member) {
            ("$ref", Value::String(target)) => {
                self.references.insert(target);
            }
            ("oneOf", Value::Array(alternatives)) => self.alternatives += alternatives.len(),
            ("patternProperties", Value::Object(patterns)) => self.patterns += patterns.len(),
            ("properties", Value::Object(properties)) => self.properties = self.properties.max(properties.len()),
            ("required", Value::Array(names)) => self.properties = self.properties.max(names.len()),
            _ => {}
        }
    }
    /// Can that be compiled in a second or so, and within [`STACK`]?
    ///
    /// # Errors
    /// What there is too much of.
    pub fn check(&self) -> Result<(), String> {
        // A reference is followed once, within what it stands in: every target may come to be within every other one.
        let levels = self.depth * (1 + self.references.len());
        let (properties, alternatives, patterns) =
            if self.combines { COMBINED } else { (PROPERTIES, ALTERNATIVES, PATTERNS) };
        let place = if self.combines { " where schemas are combined (allOf, or $ref beside others)" } else { "" };
        for (name, count, most) in [
            ("values", self.values, VALUES),
            ("levels of nesting and references", levels, LEVELS),
            ("properties of an object", self.properties, properties),
            ("alternatives of oneOf, in place of which anyOf may do", self.alternatives, alternatives),
            ("patternProperties", self.patterns, patterns),
        ] {
            if count > most {
                return Err(format!("it has {count} {name}, and may have {most}{place}"));
            }
        }
        Ok(())
    }
}
