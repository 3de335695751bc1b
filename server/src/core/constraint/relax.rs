//! Relaxes a schema: keywords that the compiler cannot enforce are left open, and references with
//! escapes are rewritten into those that it resolves.

use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Keywords whose value must be a number that is not negative and whole.
const COUNTS: &[&str] = &[
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
];
/// Keywords with a number.
const BOUNDS: &[&str] = &["minimum", "maximum"];
/// Keywords with schemas by name.
const NAMED: &[&str] = &["properties", "patternProperties", "$defs", "definitions"];
/// Keywords with one schema or a list of them.
const NESTED: &[&str] = &[
    "items",
    "prefixItems",
    "anyOf",
    "oneOf",
    "allOf",
    "additionalProperties",
    "additionalItems",
];
/// Maximum bytes of a pattern that is compiled for a check; longer ones are left to the compiler.
const MAX_PATTERN: usize = 1_000;
/// Maximum patterns that are checked.
const MAX_PATTERNS: usize = 64;

/// Formats whose definitions in the compiler have numbers without end, with bounded ones.
const FORMATS: &[(&str, &str)] = &[
    (
        "date-time",
        r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[tT]([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]{1,9})?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$",
    ),
    (
        "time",
        r"^([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]{1,9})?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$",
    ),
    (
        "duration",
        r"^P([0-9]{1,9}W|([0-9]{1,9}Y)?([0-9]{1,9}M)?[0-9]{1,9}D(T[0-9]{1,9}[HMS])?|[0-9]{1,9}[YM]|T([0-9]{1,9}H)?([0-9]{1,9}M)?[0-9]{1,9}S|T([0-9]{1,9}H)?[0-9]{1,9}M|T[0-9]{1,9}H)$",
    ),
];

/// Returns the relaxed schema. Adds the keywords that are left open to `open`.
pub fn relaxed(schema: &Value, open: &mut BTreeSet<String>) -> Value {
    let mut relaxer = Relaxer { open, patterns: 0 };
    let mut schema = relaxer.schema(schema);
    rewrite_references(&mut schema);
    schema
}

/// Returns the relaxed schema of a call's arguments, which are an object: `{}` without parameters.
pub fn arguments(parameters: Option<&Value>, open: &mut BTreeSet<String>) -> Value {
    let none = || json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let Some(Value::Object(mut members)) = parameters.map(|schema| relaxed(schema, open)) else {
        return none();
    };
    let names_none = |schema: &Value| schema.get("properties").is_some_and(Value::is_null);
    if parameters.is_some_and(names_none) {
        members.insert("properties".into(), Map::new().into());
    }
    let properties = members.get("properties").and_then(Value::as_object);
    let annotations = [
        "$schema",
        "$id",
        "$comment",
        "title",
        "description",
        "type",
        "properties",
    ];
    let alone = members.keys().all(|key| {
        annotations.contains(&key.as_str())
            || key == "required"
            || key == "additionalProperties" && members[key] == false
    });
    // A bare `{"type": "object"}` may have any members; `{}` and `"properties": {}` have none.
    let is_empty = properties.map_or(!members.contains_key("type"), Map::is_empty);
    if alone && is_empty && required(&members).is_empty() {
        return none();
    }
    members.insert("type".into(), "object".into());
    members.into()
}

fn required(members: &Map<String, Value>) -> &[Value] {
    let names = members.get("required").and_then(Value::as_array);
    names.map_or(&[], Vec::as_slice)
}

struct Relaxer<'o> {
    open: &'o mut BTreeSet<String>,
    /// Number of patterns checked so far.
    patterns: usize,
}

impl Relaxer<'_> {
    fn schema(&mut self, schema: &Value) -> Value {
        let Value::Object(members) = schema else {
            return schema.clone();
        };
        let mut out = Map::new();
        for (key, value) in members {
            if let Some(value) = self.member(key, value) {
                out.insert(key.clone(), value);
            } else {
                self.open.insert(key.clone());
            }
        }
        if let Some((_, pattern)) = out
            .get("format")
            .and_then(|format| FORMATS.iter().find(|(name, _)| *format == *name))
            && !out.contains_key("pattern")
        {
            out.remove("format");
            out.insert("pattern".into(), (*pattern).into());
        }
        name_required(&mut out);
        // Names that a dropped pattern allowed stay allowed.
        if members.contains_key("patternProperties") && !out.contains_key("patternProperties") {
            out.insert("additionalProperties".into(), true.into());
        }
        out.into()
    }
    /// Returns the member of a schema as the compiler takes it; `None` if it is left open.
    fn member(&mut self, key: &str, value: &Value) -> Option<Value> {
        match (key, value) {
            (key, Value::Null) if key != "const" && key != "default" => None,
            ("pattern", Value::String(pattern)) => self.compiles(pattern).then(|| value.clone()),
            ("patternProperties", Value::Object(patterns))
                if !patterns.keys().all(|pattern| self.compiles(pattern)) =>
            {
                None
            }
            ("required", Value::Array(names)) => Some(
                names
                    .iter()
                    .filter(|name| name.is_string())
                    .cloned()
                    .collect(),
            ),
            ("type", Value::String(_)) => Some(with_plain_type(value)),
            ("type", Value::Array(names)) => Some(names.iter().map(with_plain_type).collect()),
            ("multipleOf", value) => value
                .as_f64()
                .filter(|&step| is_decimal(step))
                .map(|_| value.clone()),
            (key, value) if COUNTS.contains(&key) => {
                let whole = |number: f64| number >= 0.0 && number.fract() == 0.0;
                value
                    .as_f64()
                    .filter(|&number| whole(number) && number < 9e15)
                    .map(|number| (number as u64).into())
            }
            (key, value) if BOUNDS.contains(&key) => value.is_number().then(|| value.clone()),
            (key, Value::Object(named)) if NAMED.contains(&key) => {
                let each = named.iter();
                Some(
                    each.map(|(name, schema)| (name.clone(), self.schema(schema)))
                        .collect(),
                )
            }
            (key, Value::Array(list)) if NESTED.contains(&key) => {
                Some(list.iter().map(|schema| self.schema(schema)).collect())
            }
            (key, value) if NESTED.contains(&key) => Some(self.schema(value)),
            ("pattern" | "format", value) => value.is_string().then(|| value.clone()),
            ("patternProperties" | "required" | "properties", _) => None,
            _ => Some(value.clone()),
        }
    }
    /// Returns whether the compiler knows all of a pattern's syntax.
    fn compiles(&mut self, pattern: &str) -> bool {
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS || pattern.len() > MAX_PATTERN {
            return true;
        }
        RegexBuilder::new()
            .mk_regex(&regex_to_lark(pattern, "dw"))
            .is_ok()
    }
}

/// Returns the JSON schema's name of a type, which tools also write in capitals or in the words of
/// their language; `None` for any other name.
fn plain_type(name: &str) -> Option<&'static str> {
    let name = name.trim().to_ascii_lowercase();
    Some(match name.as_str() {
        "object" | "dict" | "map" | "struct" | "record" => "object",
        "array" | "list" | "tuple" | "set" => "array",
        "string" | "str" | "text" => "string",
        "integer" | "int" | "long" | "int32" | "int64" => "integer",
        "number" | "float" | "double" => "number",
        "boolean" | "bool" => "boolean",
        "null" | "none" | "nonetype" => "null",
        _ => return None,
    })
}

/// Returns a type by its name in JSON schemas. An unknown name stays, for the compiler to refuse.
fn with_plain_type(name: &Value) -> Value {
    let plain = name.as_str().and_then(plain_type);
    plain.map_or_else(|| name.clone(), Value::from)
}

/// Adds the required names without a schema to the properties, with any value: an object that is
/// closed to other names could not have them.
fn name_required(members: &mut Map<String, Value>) {
    const MAX_NAMES: usize = 256;
    let decides = |key: &str| members.contains_key(key);
    if decides("additionalProperties") || decides("patternProperties") {
        return;
    }
    let names: Vec<String> = required(members)
        .iter()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .take(MAX_NAMES)
        .collect();
    if let Some(Value::Object(properties)) = members.get_mut("properties")
        && !properties.is_empty()
    {
        for name in names {
            properties.entry(name).or_insert_with(|| json!({}));
        }
    }
}

/// Returns whether the compiler takes this step of `multipleOf`, which has few digits.
fn is_decimal(mut step: f64) -> bool {
    let mut digits = 0;
    while step.fract() != 0.0 && digits < 9 {
        step *= 10.0;
        digits += 1;
    }
    step > 0.0 && step.fract() == 0.0 && step < f64::from(u32::MAX)
}

/// Rewrites the references whose pointers have escapes (RFC 6901), which the compiler does not
/// know. Targets with a slash in a name move to a definition with another name.
fn rewrite_references(schema: &mut Value) {
    let mut references = BTreeSet::new();
    collect(schema, &mut references);
    let mut moved = Vec::new();
    for reference in references {
        let decoded = percent_decode_str(&reference[1..])
            .decode_utf8_lossy()
            .into_owned();
        moved.push((reference, decoded));
    }
    // The innermost targets move first, so that the pointers of the outer ones stay valid.
    moved.sort_by_key(|(_, pointer)| std::cmp::Reverse(pointer.matches('/').count()));
    let mut names: Vec<(String, String)> = Vec::new();
    for (i, (reference, pointer)) in moved.into_iter().enumerate() {
        let plain = if pointer.contains("~1") {
            let name = format!("#/$defs/referenced {i}");
            let Some(target) = schema.pointer_mut(&pointer) else {
                continue;
            };
            let target = std::mem::replace(target, json!({ "$ref": name }));
            if let Value::Object(root) = schema
                && let Some(defs) = root
                    .entry("$defs")
                    .or_insert_with(|| Map::new().into())
                    .as_object_mut()
            {
                defs.insert(name["#/$defs/".len()..].to_owned(), target);
            }
            name
        } else {
            format!("#{}", pointer.replace("~0", "~"))
        };
        names.push((reference, plain));
    }
    if !names.is_empty() {
        rename(schema, &names.into_iter().collect());
    }
}

/// Collects the references of a document to itself that have escapes.
fn collect(schema: &Value, references: &mut BTreeSet<String>) {
    match schema {
        Value::Array(entries) => entries.iter().for_each(|entry| collect(entry, references)),
        Value::Object(members) => {
            if let Some(Value::String(target)) = members.get("$ref")
                && target.starts_with("#/")
                && target.contains(['~', '%'])
            {
                references.insert(target.clone());
            }
            members
                .values()
                .for_each(|member| collect(member, references));
        }
        _ => {}
    }
}

fn rename(schema: &mut Value, names: &std::collections::BTreeMap<String, String>) {
    match schema {
        Value::Array(entries) => entries.iter_mut().for_each(|entry| rename(entry, names)),
        Value::Object(members) => {
            if let Some(Value::String(target)) = members.get_mut("$ref")
                && let Some(name) = names.get(target)
            {
                target.clone_from(name);
            }
            members
                .values_mut()
                .for_each(|member| rename(member, names));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{arguments, relaxed};
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    fn relax(schema: &Value) -> (Value, Vec<String>) {
        let mut open = BTreeSet::new();
        let schema = relaxed(schema, &mut open);
        (schema, open.into_iter().collect())
    }

    #[test]
    fn types_have_their_names_and_required_names_a_schema() {
        let schema = json!({
            "type": "OBJECT", "required": ["a", "b", 7],
            "properties": { "a": { "type": "str" } , "c": { "type": ["Integer", "NULL"] } },
        });
        let out = json!({
            "type": "object", "required": ["a", "b"],
            "properties": { "a": { "type": "string" }, "c": { "type": ["integer", "null"] }, "b": {} },
        });
        assert_eq!(relax(&schema), (out, vec![]));
        let odd = json!({ "type": "any", "items": { "type": ["string", "date"] } });
        assert_eq!(relax(&odd), (odd.clone(), vec![]));
        // Other keywords may allow the name.
        for key in ["additionalProperties", "patternProperties"] {
            let schema = json!({ "required": ["b"], "properties": { "a": {} }, key: {} });
            assert_eq!(relax(&schema).0, schema);
        }
    }

    #[test]
    fn keywords_that_cannot_be_enforced_are_left_open() {
        for (key, value) in [
            ("pattern", json!("(?=a)b")),
            ("pattern", json!("(")),
            ("required", json!(true)),
            ("multipleOf", json!(0)),
            ("minLength", json!("3")),
            ("items", json!(null)),
            ("minimum", json!("0")),
        ] {
            let out = json!({ "properties": { "x": {} } });
            let schema = json!({ "properties": { "x": { key: value } } });
            assert_eq!(relax(&schema), (out, vec![key.to_owned()]), "{schema}");
        }
        let patterns = json!({ "patternProperties": { "(": {} }, "additionalProperties": false });
        assert_eq!(relax(&patterns).0, json!({ "additionalProperties": true }));
        let kept = json!({ "properties": { "pattern": { "pattern": "^[a-z]+$" } }, "minItems": 1 });
        assert_eq!(relax(&kept), (kept, Vec::new()));
    }

    #[test]
    fn references_lose_their_escapes() {
        let schema = json!({
            "$defs": { "Page<Item>": { "type": "boolean" }, "a/b": { "c~d": {} }, "e%": {} },
            "anyOf": [
                { "$ref": "#/$defs/Page%3CItem%3E" }, { "$ref": "#/$defs/a~1b" },
                { "$ref": "#/$defs/a~1b/c~0d" }, { "$ref": "#/$defs/e%25" },
            ],
        });
        let (schema, _) = relax(&schema);
        let targets: Vec<&str> = schema["anyOf"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["$ref"].as_str().unwrap())
            .collect();
        assert_eq!(targets[0], "#/$defs/Page<Item>");
        assert_eq!(targets[3], "#/$defs/e%");
        for target in targets {
            assert!(schema.pointer(&target[1..]).is_some(), "{target}: {schema}");
        }
    }

    #[test]
    fn arguments_are_an_object() {
        let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let of = |schema: Value| arguments(Some(&schema), &mut BTreeSet::new());
        assert_eq!(arguments(None, &mut BTreeSet::new()), none);
        for schema in [
            json!({}),
            json!({ "type": "object", "properties": {} }),
            json!(null),
        ] {
            assert_eq!(of(schema.clone()), none, "{schema}");
        }
        assert_eq!(of(json!({ "properties": { "a": {} } }))["type"], "object");
        let free = json!({ "type": "object" });
        assert_eq!(of(free.clone()), free);
    }
}
