//! How much of a schema there may be. Compiling one cannot be broken off, takes stack for each level of it, and in places time by the
//! square: what would take seconds is refused before.

use serde_json::{Map, Value};
use std::collections::HashSet;

/// Levels of JSON that the compiler may be within at a time: a chain of 1,000 references is 6,000 of them, and takes up to 16 MiB of its
/// stack.
const MAX_LEVELS: usize = 8_000;
/// Bytes of stack for that, with a margin. The system gives what is touched only.
pub const STACK: usize = 64 << 20;
/// Values in all: 10,000 of an enumeration take a quarter of a second.
const MAX_VALUES: usize = 50_000;
/// Properties of every object, squared and added up, as the time is: one object of 1,000, and 2,000 take 2 s.
const MAX_SQUARED_PROPERTIES: usize = 1_000_000;
/// Properties of an object that says how many it must have: the time goes by the cube.
const MAX_COUNTED_PROPERTIES: usize = 64;
/// Alternatives of all `oneOf`, each of which is compared with each: 20,000 take 6 s.
const MAX_ALTERNATIVES: usize = 2_000;
/// Patterns of names of properties, each of which is intersected with each: 300 take 26 s.
const MAX_PATTERNS: usize = 32;
/// Properties of an object, and patterns, in a schema that intersects some, which multiplies what they have.
const MAX_COMBINED: (usize, usize) = (200, 1);
/// Products of alternatives there, of all such schemas: 24 alternatives in groups of three, which is the worst way to group them.
const MAX_ALTERNATIVE_PRODUCT: usize = 3_usize.pow(8);
/// Keys that only describe a schema: nothing is intersected with them.
const ANNOTATION_KEYWORDS: [&str; 12] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
    "$id",
    "$defs",
    "definitions",
];

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
    squares: usize,
    alternatives: usize,
    patterns: usize,
    /// Products of the alternatives of those that intersect.
    products: usize,
    /// What the largest object has of properties, and how many it may have.
    most: Option<(usize, usize)>,
    combined_patterns: usize,
}

/// What one schema has.
#[derive(Default)]
struct One {
    properties: usize,
    /// The most properties of an object that says how many it must have.
    counted: usize,
    alternatives: usize,
    patterns: usize,
    combines: bool,
    /// Does one say how many properties another's object must have?
    counts: bool,
}

impl<'s> Tally<'s> {
    /// One more schema. What only looks like a part of one counts too.
    pub fn add(&mut self, schema: &'s Value) {
        let mut one = One::default();
        self.walk(schema, 1, &mut one);
        self.alternatives += one.alternatives;
        self.patterns += one.patterns;
        if one.combines {
            // No grouping of that many alternatives has a larger product.
            let groups = u32::try_from(one.alternatives.div_ceil(3)).unwrap_or(u32::MAX);
            self.products = self.products.saturating_add(3_usize.saturating_pow(groups));
            self.combined_patterns = self.combined_patterns.max(one.patterns);
            self.bound(one.properties, MAX_COMBINED.0);
        }
        self.bound(if one.counts { one.properties } else { one.counted }, MAX_COUNTED_PROPERTIES);
    }
    /// An object has so many properties, and may have that many.
    fn bound(&mut self, properties: usize, most: usize) {
        if properties > most {
            self.most = Some((properties, most));
        }
    }
    fn walk(&mut self, value: &'s Value, depth: usize, one: &mut One) {
        self.values += 1;
        self.depth = self.depth.max(depth);
        match value {
            Value::Array(entries) => entries.iter().for_each(|entry| self.walk(entry, depth + 1, one)),
            Value::Object(members) => {
                intersect(members, one);
                for (key, member) in members {
                    self.keyword(key, member, one);
                    self.walk(member, depth + 1, one);
                }
            }
            _ => {}
        }
    }
    fn keyword(&mut self, key: &str, member: &'s Value, one: &mut One) {
        let properties = match (key, member) {
            ("$ref", Value::String(target)) => {
                self.references.insert(target);
                return;
            }
            ("oneOf", Value::Array(alternatives)) => {
                one.alternatives += alternatives.len();
                return;
            }
            ("patternProperties", Value::Object(patterns)) => {
                one.patterns += patterns.len();
                return;
            }
            ("properties", Value::Object(properties)) => properties.len(),
            ("required", Value::Array(names)) => names.len(),
            _ => return,
        };
        one.properties = one.properties.max(properties);
        self.squares = self.squares.saturating_add(properties.saturating_mul(properties));
    }
    /// Can that be compiled in a second or so, and within [`STACK`]?
    ///
    /// # Errors
    /// What there is too much of.
    pub fn check(&self) -> Result<(), String> {
        // A reference is followed once, within what it stands in: every target may come to be within every other one.
        let levels = self.depth * (1 + self.references.len());
        let (properties, most) = self.most.unwrap_or_default();
        for (name, count, most) in [
            ("values", self.values, MAX_VALUES),
            ("levels of nesting and references", levels, MAX_LEVELS),
            ("properties of its objects, squared and added up", self.squares, MAX_SQUARED_PROPERTIES),
            ("properties of an object that is combined with others or says how many it must have", properties, most),
            ("alternatives of oneOf, in place of which anyOf may do", self.alternatives, MAX_ALTERNATIVES),
            (
                "products of alternatives where schemas are combined (allOf, or $ref beside others)",
                self.products,
                MAX_ALTERNATIVE_PRODUCT,
            ),
            ("patternProperties", self.patterns, MAX_PATTERNS),
            ("patternProperties where schemas are combined", self.combined_patterns, MAX_COMBINED.1),
        ] {
            if count > most {
                return Err(format!("it has {count} {name}, and may have {most}"));
            }
        }
        Ok(())
    }
}

/// Whether one object of a schema makes others be intersected. What is called like a keyword and has another type is none: properties
/// may have any names.
fn intersect(members: &Map<String, Value>, one: &mut One) {
    let list = |key: &str| members.get(key).and_then(Value::as_array).map(Vec::len);
    let alone = |key: &str| members.keys().all(|it| it == key || ANNOTATION_KEYWORDS.contains(&it.as_str()));
    let refers = members.get("$ref").is_some_and(Value::is_string);
    let applied = ["allOf", "anyOf", "oneOf"].iter().filter(|key| list(key).is_some()).count() + usize::from(refers);
    one.combines |= applied > 1 || list("allOf").is_some_and(|n| n > 1 || !alone("allOf"));
    if ["minProperties", "maxProperties"].iter().any(|key| members.get(*key).is_some_and(Value::is_number)) {
        one.counts |= applied > 0;
        let own = members.get("properties").and_then(Value::as_object).map_or(0, Map::len);
        let required = list("required").unwrap_or(0);
        one.counted = one.counted.max(own).max(required);
    }
}
