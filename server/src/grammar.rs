//! Grammars for what a request asks of an answer: JSON of a schema, calls of tools. In llguidance's variant of Lark.

use crate::reply::{CALL, CALLED};
use crate::schema::Tally;
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

/// Most bytes of a grammar: definitions are repeated for every parameter that refers to some.
const BYTES: usize = 8 << 20;

/// The grammar of a form.
///
/// # Errors
/// When its schemas are too large to be compiled.
pub fn grammar(form: &Form, style: Style, tokenizer: &Tokenizer) -> Result<TopLevelGrammar, String> {
    let mut tally = Tally::default();
    form.schema.into_iter().chain(form.calls.iter().filter_map(|tool| tool.parameters)).for_each(|it| tally.add(it));
    tally.check()?;
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
            if rules.len() > BYTES {
                return Err(format!("its grammar is longer than {BYTES} bytes"));
            }
            line(&mut rules, format_args!("call_{i}: {} {body} {}", marker(CALL), marker(CALLED)));
        }
    }
    Ok(TopLevelGrammar::from_lark(format!("start: {}\n{rules}", starts.join(" | "))))
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
                // References are to the root of what they stand in. There is no use for them where the grammar is too long already.
                for definitions in ["$defs", "definitions"].into_iter().filter(|_| rules.len() <= BYTES) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::Grammars;
    use crate::reply::MARKERS;
    use gristmill_llm::tokenizer::TokenizerSpec;

    /// Printable characters, and the markers as special tokens.
    fn tokenizer() -> Tokenizer {
        let plain = ('!'..='~').map(String::from).chain(["\u{120}".into(), "\u{10a}".into()]);
        let markers = MARKERS.iter().map(|marker| marker.to_string()).chain(["<|end|>".into()]);
        let tokens: Vec<Vec<u8>> = plain.chain(markers).map(String::into_bytes).collect();
        let token_types = Some((0..tokens.len()).map(|i| if i < 96 { 1 } else { 3 }).collect());
        let eos = Some(tokens.len() as u32 - 1);
        let spec = TokenizerSpec {
            model: "gpt2".into(),
            pre: "glm4".into(),
            tokens,
            token_types,
            eos,
            ..TokenizerSpec::default()
        };
        Tokenizer::new(spec).expect("a tokenizer")
    }

    /// Follows a text as far as the grammar allows: how much of it that is, and whether the answer is complete then.
    fn follow(form: &Form, style: Style, thinking: bool, text: &str) -> (String, bool) {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer, tokenizer.n_tokens());
        let mut constraint =
            grammars.compile(grammar(form, style, &tokenizer).expect("small"), thinking).expect("a grammar");
        let (mut done, mut complete) = (String::new(), false);
        for id in tokenizer.encode(text, true, false) {
            let mut logits = vec![0.0; tokenizer.n_tokens()];
            constraint.mask(&mut logits).expect("a mask");
            if complete || logits[id as usize] < 0.0 {
                return (done, complete);
            }
            let bytes = tokenizer.token_bytes(id).expect("bytes");
            complete = constraint.accept(id, bytes).expect("accepted");
            done += &tokenizer.decode(&[id], true);
        }
        (done, complete)
    }

    fn weather() -> Value {
        json!({
            "$defs": { "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
            "properties": { "city": { "type": "string" }, "days": { "$ref": "#/$defs/days" }, "unit": { "enum": ["c", "f"] } },
            "required": ["city"], "additionalProperties": false,
        })
    }

    #[test]
    fn calls_in_either_style_follow_the_schema() {
        let parameters = weather();
        let calls = || {
            vec![
                Callable { name: "weather", parameters: Some(&parameters) },
                Callable { name: "now", parameters: None },
            ]
        };
        let form = Form { calls: calls(), ..Form::default() };
        let pair = |key: &str, value: &str| format!("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>");
        let tags = |arguments: &str| format!("<tool_call>weather{arguments}</tool_call>");
        let good = [
            (Style::Tags, tags(&pair("city", "New York"))),
            (Style::Tags, tags(&[pair("city", "Rome"), pair("days", "3"), pair("unit", "f")].concat())),
            (Style::Tags, "<tool_call>now</tool_call>".into()),
            (
                Style::Json,
                "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}</tool_call>"
                    .into(),
            ),
            (Style::Json, "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>".into()),
        ];
        for (style, text) in good {
            assert_eq!(follow(&form, style, false, &text), (text.clone(), true));
        }
        for (style, text, until) in [
            (Style::Tags, tags(""), "<tool_call>weather"),
            (Style::Tags, tags(&[pair("city", "Rome"), pair("days", "0")].concat()), "<arg_value>"),
            (Style::Tags, "<tool_call>never</tool_call>".into(), "<tool_call>n"),
            (Style::Json, "<tool_call>{\"name\": \"other\"".into(), "{\"name\": \""),
            (Style::Json, "Hello".into(), ""),
        ] {
            let (done, complete) = follow(&form, style, false, &text);
            assert!(!complete && done.ends_with(until) && done.len() < text.len(), "{text}: {done}");
        }
    }

    #[test]
    fn several_calls_only_where_they_are_wanted() {
        let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
        for several in [false, true] {
            let form = Form { calls: vec![Callable { name: "now", parameters: None }], several, ..Form::default() };
            let (done, complete) = follow(&form, Style::Json, false, &call.repeat(2));
            assert_eq!((done.matches("now").count(), complete), if several { (2, false) } else { (1, true) });
        }
    }

    #[test]
    fn reasoning_is_free_and_the_answer_is_not() {
        let schema = json!({ "type": "object", "properties": { "x": { "type": "boolean" } }, "required": ["x"], "additionalProperties": false });
        let form = Form { schema: Some(&schema), ..Form::default() };
        let text = "Hm. So?</think>{\"x\": true}";
        assert_eq!(follow(&form, Style::Json, true, text), (text.into(), true));
        assert_eq!(follow(&form, Style::Json, true, "Hm.</think>No").0, "Hm.</think>");
        assert_eq!(follow(&form, Style::Json, false, "Hm.").0, "");
    }
}
