//! Grammars for what a request asks of an answer: JSON of a schema, calls of tools. In llguidance's variant of Lark.

use crate::reply::{CALL, CALLED};
use gristmill_llm::tokenizer::{TokenKind, Tokenizer};
use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// How a model writes calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// `{"name": …, "arguments": {…}}`.
    Json,
    /// `name<arg_key>k</arg_key><arg_value>v</arg_value>`.
    Tags,
}

/// A tool that may be called.
pub struct Callable<'t> {
    /// Its name.
    pub name: &'t str,
    /// The JSON schema of its parameters.
    pub parameters: Option<&'t Value>,
}

/// What an answer must be.
#[derive(Default)]
pub struct Form<'t> {
    /// JSON of that schema may be the answer.
    pub schema: Option<&'t Value>,
    /// Calls of these may be the answer.
    pub calls: Vec<Callable<'t>>,
    /// Several calls?
    pub several: bool,
}

/// The grammar of a form.
pub fn grammar(form: &Form, style: Style, tokenizer: &Tokenizer) -> TopLevelGrammar {
    let mut starts: Vec<String> = Vec::new();
    let mut rules = String::new();
    if let Some(schema) = form.schema {
        starts.push("answer".into());
        line(&mut rules, format_args!("answer: %json {}", compact(schema)));
    }
    if !form.calls.is_empty() {
        starts.push(if form.several { "call+" } else { "call" }.into());
        let names: Vec<String> = (0..form.calls.len()).map(|i| format!("call_{i}")).collect();
        line(&mut rules, format_args!("call: {}", names.join(" | ")));
        let marker = |text: &str| marker(tokenizer, text);
        for (i, tool) in form.calls.iter().enumerate() {
            let body = match style {
                Style::Json => json_call(&mut rules, i, tool),
                Style::Tags => tags_call(&mut rules, i, tool, &marker),
            };
            line(&mut rules, format_args!("call_{i}: {} {body} {}", marker(CALL), marker(CALLED)));
        }
    }
    TopLevelGrammar::from_lark(format!("start: {}\n{rules}", starts.join(" | ")))
}

fn line(rules: &mut String, text: std::fmt::Arguments) {
    // Writing to a String does not fail.
    let _ = writeln!(rules, "{text}");
}

/// A text that structures a reply: a special token where there is one.
fn marker(tokenizer: &Tokenizer, text: &str) -> String {
    match tokenizer.token_id(text).filter(|&id| tokenizer.token_kind(id) == Some(TokenKind::Control)) {
        Some(id) => format!("<[{id}]>"),
        None => literal(text),
    }
}

fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

fn json_call(rules: &mut String, i: usize, tool: &Callable) -> String {
    let any = json!({ "type": "object" });
    line(rules, format_args!("arguments_{i}: %json {}", compact(tool.parameters.unwrap_or(&any))));
    let head = format!("{{\"name\": {}, \"arguments\": ", literal(tool.name));
    format!("{} arguments_{i} {}", literal(&head), literal("}"))
}

fn tags_call(rules: &mut String, i: usize, tool: &Callable, marker: &dyn Fn(&str) -> String) -> String {
    let none = Map::new();
    let object = |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_default();
    let parameters = tool.parameters.and_then(Value::as_object).unwrap_or(&none);
    let required = parameters.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut body = literal(tool.name);
    for (j, (key, schema)) in object(parameters.get("properties")).iter().enumerate() {
        let value = match (schema.get("type").and_then(Value::as_str), schema.get("enum").and_then(Value::as_array)) {
            (Some("string") | None, Some(choices)) if choices.iter().all(Value::is_string) => {
                let choices: Vec<String> = choices.iter().filter_map(Value::as_str).map(literal).collect();
                format!("({})", choices.join(" | "))
            }
            (Some("string"), _) => "/[^<]*/".into(),
            _ => {
                let mut schema = object(Some(schema));
                // References are to the root of what they stand in.
                for definitions in ["$defs", "definitions"] {
                    if let Some(all) = parameters.get(definitions) {
                        schema.insert(definitions.into(), all.clone());
                    }
                }
                line(rules, format_args!("value_{i}_{j}: %json {}", compact(&schema.into())));
                format!("value_{i}_{j}")
            }
        };
        let [key_start, key_end, value_start, value_end] =
            ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"].map(marker);
        let pair = format!("{key_start} {} {key_end} {value_start} {value} {value_end}", literal(key));
        line(rules, format_args!("argument_{i}_{j}: {pair}"));
        let optional = if required.iter().any(|r| r == key.as_str()) { "" } else { "?" };
        // Writing to a String does not fail.
        let _ = write!(body, " argument_{i}_{j}{optional}");
    }
    body
}

/// The schema, of JSON without free white space: a model that is unsure would go on with that for ever.
fn compact(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Object(schema) => schema.clone(),
        // `true` and `false` are schemas too.
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    let spaced = json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
    schema.entry("x-guidance").or_insert(spaced);
    schema.into()
}
