//! Grammars of tool calls in the markup of a model.

use super::bare::BareRules;
use super::close::compact;
use super::lark::{GrammarTexts, line, literal};
use gristmill_llm::chat::markup::{Arguments, CallFormat, Frame};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// A tool that the model may call.
pub struct Callable<'t> {
    /// Name of the function.
    pub name: &'t str,
    /// JSON schema of the parameters, if the tool declares any.
    pub parameters: Option<&'t Value>,
}

/// Maximum bytes of a grammar. Definitions are repeated for every parameter between tags, so
/// grammars can be much larger than their schemas.
const MAX_GRAMMAR_BYTES: usize = 8 << 20;

/// Returns the rule `calls` and the rules that it needs: one call, or one or more if `several` and
/// the markup allows it.
///
/// # Errors
/// When the grammar is too large.
pub fn call_rules(
    texts: &GrammarTexts,
    calls: &[Callable],
    several: bool,
) -> Result<String, String> {
    let mut rules = String::new();
    let markup = texts.markup;
    let (open, close) = (
        texts.terms(markup.section[0]),
        texts.terms(markup.section[1]),
    );
    // A call in a markup with message headers is a message of its own and ends the reply; templates
    // of bare markups write a single call.
    let several = several && markup.frame == Frame::Text && !markup.is_bare();
    let body = match (markup.form, several) {
        (CallFormat::Object { list: true, .. }, true) => {
            "\"[\" call (\", \" call)* \"]\"".to_owned()
        }
        (CallFormat::Object { list: true, .. }, false) => "\"[\" call \"]\"".to_owned(),
        (_, true) => "call+".to_owned(),
        (_, false) => "call".to_owned(),
    };
    line(&mut rules, format_args!("calls: {open} {body} {close}"));
    let names: Vec<String> = (0..calls.len()).map(|i| format!("call_{i}")).collect();
    line(&mut rules, format_args!("call: {}", names.join(" | ")));
    let (open, close) = (texts.terms(markup.call[0]), texts.terms(markup.call[1]));
    for (i, tool) in calls.iter().enumerate() {
        let body = match markup.form {
            CallFormat::Object { arguments, .. } => object_call(&mut rules, i, tool, arguments),
            CallFormat::Named(name, arguments) => {
                let id = name
                    .id
                    .map(|id| format!("{} /{}/", texts.terms(id.before), id.pattern))
                    .unwrap_or_default();
                let (before, after) = (texts.terms(name.before), texts.terms(name.after));
                let values = match arguments {
                    Arguments::Json => {
                        arguments_rule(&mut rules, i, tool);
                        format!("arguments_{i}")
                    }
                    Arguments::Tags { key, value } => {
                        Tags { texts, key, value }.call(&mut rules, i, tool)
                    }
                    Arguments::Bare(quote) => {
                        BareRules::new(texts, quote, i, &mut rules, MAX_GRAMMAR_BYTES)
                            .arguments(tool.parameters)
                    }
                };
                format!("{before} {} {id} {after} {values}", literal(tool.name))
            }
        };
        if rules.len() > MAX_GRAMMAR_BYTES {
            return Err(format!(
                "its grammar is longer than {MAX_GRAMMAR_BYTES} bytes"
            ));
        }
        line(&mut rules, format_args!("call_{i}: {open} {body} {close}"));
    }
    Ok(rules)
}

fn arguments_rule(rules: &mut String, i: usize, tool: &Callable) {
    let any = json!({ "type": "object" });
    line(
        rules,
        format_args!(
            "arguments_{i}: %json {}",
            compact(tool.parameters.unwrap_or(&any))
        ),
    );
}

fn object_call(rules: &mut String, i: usize, tool: &Callable, arguments: &str) -> String {
    arguments_rule(rules, i, tool);
    let head = format!("{{\"name\": {}, \"{arguments}\": ", literal(tool.name));
    format!("{} arguments_{i} {}", literal(&head), literal("}"))
}

/// Markup around the name and the value of an argument.
struct Tags<'g> {
    texts: &'g GrammarTexts<'g>,
    key: [&'static str; 2],
    value: [&'static str; 2],
}

impl Tags<'_> {
    fn call(&self, rules: &mut String, i: usize, tool: &Callable) -> String {
        let none = Map::new();
        let parameters = tool.parameters.and_then(Value::as_object).unwrap_or(&none);
        let required = parameters
            .get("required")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let [key_open, key_close] = self.key.map(|text| self.texts.terms(text));
        let mut body = String::new();
        for (j, (key, schema)) in object(parameters.get("properties")).iter().enumerate() {
            let value = self.value(rules, (i, j), parameters, schema);
            line(
                rules,
                format_args!(
                    "argument_{i}_{j}: {key_open} {} {key_close} {value}",
                    literal(key)
                ),
            );
            let optional = if required.iter().any(|r| r == key.as_str()) {
                ""
            } else {
                "?"
            };
            // Writing to a String does not fail.
            let _ = write!(body, " argument_{i}_{j}{optional}");
        }
        body
    }
    /// Returns the terms of a value between its tags, for argument `j` of tool `i`.
    fn value(
        &self,
        rules: &mut String,
        (i, j): (usize, usize),
        parameters: &Map<String, Value>,
        schema: &Value,
    ) -> String {
        let [open, close] = self.value.map(|text| self.texts.terms(text));
        match (
            schema.get("type").and_then(Value::as_str),
            schema.get("enum").and_then(Value::as_array),
        ) {
            (Some("string") | None, Some(choices)) if choices.iter().all(Value::is_string) => {
                let choices: Vec<String> = choices
                    .iter()
                    .filter_map(Value::as_str)
                    .map(literal)
                    .collect();
                format!("{open} ({}) {close}", choices.join(" | "))
            }
            (Some("string"), _) => {
                *rules += &self.texts.until(&format!("text_{i}_{j}"), self.value[1]);
                let behind = self.value[1];
                format!(
                    "{open} text_{i}_{j} {}",
                    self.texts.terms(&behind[behind.trim_end().len()..])
                )
            }
            _ => {
                let mut schema = object(Some(schema));
                // References resolve against the root of the enclosing schema, so the definitions
                // are copied into each value; not in a grammar that is already too long.
                for definitions in ["$defs", "definitions"]
                    .into_iter()
                    .filter(|_| rules.len() <= MAX_GRAMMAR_BYTES)
                {
                    if let Some(all) = parameters.get(definitions) {
                        schema.insert(definitions.into(), all.clone());
                    }
                }
                line(
                    rules,
                    format_args!("value_{i}_{j}: %json {}", compact(&schema.into())),
                );
                format!("{open} value_{i}_{j} {close}")
            }
        }
    }
}

fn object(value: Option<&Value>) -> Map<String, Value> {
    value
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
}
