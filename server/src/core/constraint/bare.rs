//! Grammars of tool arguments in Gemma's notation, built from a JSON schema: bare keys in
//! alphabetical order, and strings between the model's own quotes.
//!
//! Only types, alternatives and keys of a schema are enforced. Lengths, patterns and ranges are
//! not, as llguidance has no schema compiler for this notation.

use super::lark::{GrammarTexts, line, literal};
use serde_json::{Map, Value};

/// Maximum depth of a schema with its references followed; deeper values are unconstrained.
const MAX_DEPTH: usize = 8;

/// Builder of the rules for one tool's arguments.
pub struct BareRules<'g> {
    texts: &'g GrammarTexts<'g>,
    quote: &'static str,
    /// Index of the tool, a part of the rules' names.
    tool: usize,
    rules: &'g mut String,
    /// Bytes of rules beyond which further values are unconstrained.
    most: usize,
    count: usize,
    root: Value,
}

impl<'g> BareRules<'g> {
    /// Builder for the tool with index `tool`. Appends to `rules`; from `most` bytes on, values are
    /// unconstrained.
    pub fn new(
        texts: &'g GrammarTexts<'g>,
        quote: &'static str,
        tool: usize,
        rules: &'g mut String,
        most: usize,
    ) -> BareRules<'g> {
        BareRules {
            texts,
            quote,
            tool,
            rules,
            most,
            count: 0,
            root: Value::Null,
        }
    }
    /// Returns the terms of the arguments, with the closing brace.
    pub fn arguments(&mut self, parameters: Option<&Value>) -> String {
        self.anything();
        self.root = parameters.cloned().unwrap_or_default();
        match self
            .root
            .get("properties")
            .and_then(Value::as_object)
            .cloned()
        {
            Some(properties) => format!(
                "{} \"}}\"",
                self.pairs(&properties, &self.root.clone(), MAX_DEPTH)
            ),
            None if parameters.is_none() => "\"}\"".into(),
            None => format!("pairs_{} \"}}\"", self.tool),
        }
    }
    /// Adds the rules of values that no schema describes.
    fn anything(&mut self) {
        let i = self.tool;
        let text = self.text();
        let scalar = format!("{NUMBER} | \"true\" | \"false\" | \"null\"");
        let list = format!("\"[\" (any_{i} (\",\" any_{i})*)? \"]\"");
        line(
            self.rules,
            format_args!("any_{i}: {text} | {scalar} | {list} | \"{{\" pairs_{i} \"}}\""),
        );
        line(
            self.rules,
            format_args!("pairs_{i}: (pair_{i} (\",\" pair_{i})*)?"),
        );
        line(
            self.rules,
            format_args!("pair_{i}: /[a-zA-Z_][a-zA-Z0-9_]*/ \":\" any_{i}"),
        );
    }
    /// Returns an unused rule name.
    fn fresh(&mut self) -> String {
        self.count += 1;
        format!("bare_{}_{}", self.tool, self.count)
    }
    fn text(&mut self) -> String {
        let name = self.fresh();
        *self.rules += &self.texts.until(&name, self.quote);
        format!("{} {name}", self.texts.terms(self.quote))
    }
    /// Adds rules for an object's pairs, separated by commas, in the order of the sorted keys.
    fn pairs(&mut self, properties: &Map<String, Value>, schema: &Value, levels: usize) -> String {
        let required: Vec<&Value> = schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .collect();
        let mut keys: Vec<&String> = properties.keys().collect();
        keys.sort();
        // Built from the last key to the first: `behind` derives the rest after another pair,
        // `first` the rest before any pair.
        let (mut behind, mut first) = (String::from("\"\""), String::from("\"\""));
        for key in keys.into_iter().rev() {
            let value = self.value(&properties[key], levels - 1);
            let (pair, next_behind, next_first) = (self.fresh(), self.fresh(), self.fresh());
            line(
                self.rules,
                format_args!("{pair}: {} ({value})", literal(&format!("{key}:"))),
            );
            let is_required = required.iter().any(|r| *r == key);
            let or = |rest: &str| {
                if is_required {
                    String::new()
                } else {
                    format!(" | {rest}")
                }
            };
            line(
                self.rules,
                format_args!("{next_behind}: \",\" {pair} {behind}{}", or(&behind)),
            );
            line(
                self.rules,
                format_args!("{next_first}: {pair} {behind}{}", or(&first)),
            );
            (behind, first) = (next_behind, next_first);
        }
        first
    }
    /// Returns the alternatives of a value.
    fn value(&mut self, schema: &Value, levels: usize) -> String {
        let any = format!("any_{}", self.tool);
        if levels == 0 || self.rules.len() > self.most {
            return any;
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            let found = target
                .strip_prefix('#')
                .and_then(|path| self.root.pointer(path))
                .cloned();
            return found.map_or(any, |schema| self.value(&schema, levels - 1));
        }
        if let Some(choices) = schema
            .get("enum")
            .and_then(Value::as_array)
            .filter(|choices| !choices.is_empty())
        {
            return choices
                .clone()
                .iter()
                .map(|choice| self.constant(choice))
                .collect::<Vec<_>>()
                .join(" | ");
        }
        if let Some(constant) = schema.get("const") {
            return self.constant(constant);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(list) = schema
                .get(key)
                .and_then(Value::as_array)
                .filter(|list| !list.is_empty())
            {
                return list
                    .iter()
                    .map(|schema| self.value(schema, levels - 1))
                    .collect::<Vec<_>>()
                    .join(" | ");
            }
        }
        let types: Vec<&str> = match schema.get("type") {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let each: Vec<String> = types
            .into_iter()
            .map(|kind| self.typed(kind, schema, levels))
            .collect();
        if each.is_empty() {
            any
        } else {
            each.join(" | ")
        }
    }
    fn typed(&mut self, kind: &str, schema: &Value, levels: usize) -> String {
        match kind {
            "string" => self.text(),
            "integer" => INTEGER.into(),
            "number" => NUMBER.into(),
            "boolean" => "\"true\" | \"false\"".into(),
            "null" => "\"null\"".into(),
            "array" => {
                let item = schema
                    .get("items")
                    .map_or(format!("any_{}", self.tool), |items| {
                        self.value(items, levels - 1)
                    });
                let name = self.fresh();
                line(self.rules, format_args!("{name}: {item}"));
                format!("\"[\" ({name} (\",\" {name})*)? \"]\"")
            }
            "object" => match schema.get("properties").and_then(Value::as_object) {
                Some(properties) => {
                    format!("\"{{\" {} \"}}\"", self.pairs(properties, schema, levels))
                }
                None => format!("\"{{\" pairs_{} \"}}\"", self.tool),
            },
            _ => format!("any_{}", self.tool),
        }
    }
    fn constant(&mut self, value: &Value) -> String {
        match value {
            Value::String(text) => {
                let quote = self.texts.terms(self.quote);
                format!("{quote} {} {quote}", literal(text))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => literal(&value.to_string()),
            Value::Array(_) | Value::Object(_) => format!("any_{}", self.tool),
        }
    }
}

const INTEGER: &str = "/-?(0|[1-9][0-9]{0,18})/";
const NUMBER: &str = "/-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?/";
