//! Grammars of arguments in Gemma's notation, of a schema: bare keys in their order, strings between quotes of their own.
//!
//! What a schema says beyond types, alternatives and keys (lengths, patterns, ranges) is not held here: this notation has no grammar of its own
//! in llguidance.

use super::lark::{GrammarTexts, line, literal};
use serde_json::{Map, Value};

/// Most levels of a schema, references followed: what is deeper may be anything.
const MAX_DEPTH: usize = 8;

/// The rules of one call's arguments.
pub struct BareRules<'g> {
    texts: &'g GrammarTexts<'g>,
    quote: &'static str,
    /// Whose they are, for the names of rules.
    tool: usize,
    rules: &'g mut String,
    /// Most bytes of them.
    most: usize,
    count: usize,
    root: Value,
}

impl<'g> BareRules<'g> {
    /// Of the tool of that number, added to `rules`, while these have no more than `most` bytes.
    pub fn new(
        texts: &'g GrammarTexts<'g>,
        quote: &'static str,
        tool: usize,
        rules: &'g mut String,
        most: usize,
    ) -> BareRules<'g> {
        BareRules { texts, quote, tool, rules, most, count: 0, root: Value::Null }
    }
    /// Terms for the arguments, with the brace that closes them.
    pub fn arguments(&mut self, parameters: Option<&Value>) -> String {
        self.anything();
        self.root = parameters.cloned().unwrap_or_default();
        match self.root.get("properties").and_then(Value::as_object).cloned() {
            Some(properties) => format!("{} \"}}\"", self.pairs(&properties, &self.root.clone(), MAX_DEPTH)),
            None if parameters.is_none() => "\"}\"".into(),
            None => format!("pairs_{} \"}}\"", self.tool),
        }
    }
    /// Rules for what no schema describes.
    fn anything(&mut self) {
        let i = self.tool;
        let text = self.text();
        let scalar = format!("{NUMBER} | \"true\" | \"false\" | \"null\"");
        let list = format!("\"[\" (any_{i} (\",\" any_{i})*)? \"]\"");
        line(self.rules, format_args!("any_{i}: {text} | {scalar} | {list} | \"{{\" pairs_{i} \"}}\""));
        line(self.rules, format_args!("pairs_{i}: (pair_{i} (\",\" pair_{i})*)?"));
        line(self.rules, format_args!("pair_{i}: /[a-zA-Z_][a-zA-Z0-9_]*/ \":\" any_{i}"));
    }
    /// A name that no rule has yet.
    fn fresh(&mut self) -> String {
        self.count += 1;
        format!("bare_{}_{}", self.tool, self.count)
    }
    fn text(&mut self) -> String {
        let name = self.fresh();
        *self.rules += &self.texts.until(&name, self.quote);
        format!("{} {name}", self.texts.terms(self.quote))
    }
    /// The keys of an object, each where its order is, with a comma between two.
    fn pairs(&mut self, properties: &Map<String, Value>, schema: &Value, levels: usize) -> String {
        let required: Vec<&Value> = schema.get("required").and_then(Value::as_array).into_iter().flatten().collect();
        let mut keys: Vec<&String> = properties.keys().collect();
        keys.sort();
        // From the last to the first: what may follow where something came before, and where nothing did.
        let (mut behind, mut first) = (String::from("\"\""), String::from("\"\""));
        for key in keys.into_iter().rev() {
            let value = self.value(&properties[key], levels - 1);
            let (pair, next_behind, next_first) = (self.fresh(), self.fresh(), self.fresh());
            line(self.rules, format_args!("{pair}: {} ({value})", literal(&format!("{key}:"))));
            let is_required = required.iter().any(|r| *r == key);
            let or = |rest: &str| if is_required { String::new() } else { format!(" | {rest}") };
            line(self.rules, format_args!("{next_behind}: \",\" {pair} {behind}{}", or(&behind)));
            line(self.rules, format_args!("{next_first}: {pair} {behind}{}", or(&first)));
            (behind, first) = (next_behind, next_first);
        }
        first
    }
    /// Alternatives for a value.
    fn value(&mut self, schema: &Value, levels: usize) -> String {
        let any = format!("any_{}", self.tool);
        if levels == 0 || self.rules.len() > self.most {
            return any;
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            let found = target.strip_prefix('#').and_then(|path| self.root.pointer(path)).cloned();
            return found.map_or(any, |schema| self.value(&schema, levels - 1));
        }
        if let Some(choices) = schema.get("enum").and_then(Value::as_array).filter(|choices| !choices.is_empty()) {
            return choices.clone().iter().map(|choice| self.constant(choice)).collect::<Vec<_>>().join(" | ");
        }
        if let Some(constant) = schema.get("const") {
            return self.constant(constant);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(list) = schema.get(key).and_then(Value::as_array).filter(|list| !list.is_empty()) {
                return list.iter().map(|schema| self.value(schema, levels - 1)).collect::<Vec<_>>().join(" | ");
            }
        }
        let types: Vec<&str> = match schema.get("type") {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let each: Vec<String> = types.into_iter().map(|kind| self.typed(kind, schema, levels)).collect();
        if each.is_empty() { any } else { each.join(" | ") }
    }
    fn typed(&mut self, kind: &str, schema: &Value, levels: usize) -> String {
        match kind {
            "string" => self.text(),
            "integer" => INTEGER.into(),
            "number" => NUMBER.into(),
            "boolean" => "\"true\" | \"false\"".into(),
            "null" => "\"null\"".into(),
            "array" => {
                let item =
                    schema.get("items").map_or(format!("any_{}", self.tool), |items| self.value(items, levels - 1));
                let name = self.fresh();
                line(self.rules, format_args!("{name}: {item}"));
                format!("\"[\" ({name} (\",\" {name})*)? \"]\"")
            }
            "object" => match schema.get("properties").and_then(Value::as_object) {
                Some(properties) => format!("\"{{\" {} \"}}\"", self.pairs(properties, schema, levels)),
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
