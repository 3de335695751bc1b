//! Grammars for what a request asks of an answer: JSON of a schema, calls of tools. In llguidance's variant of Lark.

use super::{close, gbnf};
use crate::core::constraint::bounds::Tally;
use gristmill_llm::chat::markup::{Arguments, Markup};
use gristmill_llm::tokenizer::{TokenKind, Tokenizer};
use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// A tool that may be called.
pub struct Callable<'t> {
    /// Its name.
    pub name: &'t str,
    /// The JSON schema of its parameters.
    pub parameters: Option<&'t Value>,
}

/// What the text of an answer must be.
#[derive(Clone, Debug)]
pub enum Form {
    /// JSON of that schema.
    Schema(Value),
    /// A text that the regular expression matches, whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// What a grammar in llguidance's variant of Lark derives.
    Lark(String),
    /// What a grammar in llama.cpp's GBNF derives.
    Gbnf(String),
}

/// What an answer must be.
#[derive(Default)]
pub struct OutputConstraint<'t> {
    /// That may be the answer.
    pub form: Option<&'t Form>,
    /// Calls of these may be the answer.
    pub calls: Vec<Callable<'t>>,
    /// Several calls?
    pub several: bool,
}

/// Most bytes of a grammar: definitions are repeated for every parameter that refers to some.
const BYTES: usize = 8 << 20;

/// Most bytes of a grammar, or of a regular expression, that a client gives.
const GIVEN: usize = 32 << 10;

/// The grammar of what an answer must be.
///
/// # Errors
/// When its schemas are too large to be compiled, or its own grammar is, cannot be read, or stands beside tools.
pub fn grammar(
    constraint: &OutputConstraint,
    markup: &Markup,
    tokenizer: &Tokenizer,
) -> Result<TopLevelGrammar, String> {
    let OutputConstraint { form, calls, several } = constraint;
    let mut tally = Tally::default();
    let schema = form.and_then(|form| if let Form::Schema(schema) = form { Some(schema) } else { None });
    schema.into_iter().chain(calls.iter().filter_map(|tool| tool.parameters)).for_each(|it| tally.add(it));
    tally.check()?;
    let mut starts: Vec<&str> = Vec::new();
    let mut rules = String::new();
    match form {
        None => {}
        Some(Form::Lark(text) | Form::Gbnf(text)) if !calls.is_empty() || text.len() > GIVEN => {
            return Err(format!("it may have {GIVEN} bytes, and stands alone, without tools"));
        }
        Some(Form::Lark(text)) => return Ok(TopLevelGrammar::from_lark(text.clone())),
        Some(Form::Gbnf(text)) => return gbnf::to_lark(text).map(TopLevelGrammar::from_lark),
        Some(form) => {
            starts.push("answer");
            line(&mut rules, format_args!("answer: {}", answer(form)?));
        }
    }
    if !calls.is_empty() {
        starts.push(if *several { "call+" } else { "call" });
        let names: Vec<String> = (0..calls.len()).map(|i| format!("call_{i}")).collect();
        line(&mut rules, format_args!("call: {}", names.join(" | ")));
        let marker = |text: &str| marker(tokenizer, text);
        let [open, close] = markup.call.map(marker);
        for (i, tool) in calls.iter().enumerate() {
            let body = match markup.arguments {
                Arguments::Json => json_call(&mut rules, i, tool),
                Arguments::Tags { key, value } => {
                    let tags = Tags { key: key.map(marker), value: value.map(marker) };
                    tags_call(&mut rules, i, tool, &tags)
                }
            };
            if rules.len() > BYTES {
                return Err(format!("its grammar is longer than {BYTES} bytes"));
            }
            line(&mut rules, format_args!("call_{i}: {open} {body} {close}"));
        }
    }
    Ok(TopLevelGrammar::from_lark(format!("start: {}\n{rules}", starts.join(" | "))))
}

/// The right side of a rule for a form that is no grammar of its own.
fn answer(form: &Form) -> Result<String, String> {
    match form {
        Form::Schema(schema) => Ok(format!("%json {}", compact(schema))),
        Form::Regex(regex) if regex.len() > GIVEN => Err(format!("it may have {GIVEN} bytes")),
        Form::Regex(regex) => Ok(format!("/{}/", slashed(regex))),
        Form::Choice(texts) if texts.is_empty() || texts.iter().map(String::len).sum::<usize>() > GIVEN => {
            Err(format!("it must name some texts, of {GIVEN} bytes in all"))
        }
        Form::Choice(texts) => Ok(texts.iter().map(|text| literal(text)).collect::<Vec<_>>().join(" | ")),
        Form::Lark(_) | Form::Gbnf(_) => unreachable!("{form:?} is a grammar of its own"),
    }
}

/// A regular expression between slashes: those within it are escaped, and so are ends of lines.
fn slashed(regex: &str) -> String {
    let mut out = String::with_capacity(regex.len());
    let mut escaped = false;
    for c in regex.chars() {
        match c {
            '/' if !escaped => out.push_str("\\/"),
            '\n' if escaped => {
                out.pop();
                out.push_str("\\n");
            }
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    out
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

/// The texts between which an argument's name and value stand, as terms of a grammar.
struct Tags {
    key: [String; 2],
    value: [String; 2],
}

fn tags_call(rules: &mut String, i: usize, tool: &Callable, tags: &Tags) -> String {
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
        let ([key_start, key_end], [value_start, value_end]) = (&tags.key, &tags.value);
        let pair = format!("{key_start} {} {key_end} {value_start} {value} {value_end}", literal(key));
        line(rules, format_args!("argument_{i}_{j}: {pair}"));
        let optional = if required.iter().any(|r| r == key.as_str()) { "" } else { "?" };
        // Writing to a String does not fail.
        let _ = write!(body, " argument_{i}_{j}{optional}");
    }
    body
}

/// The schema, of JSON without free white space: a model that is unsure would go on with that for ever. And without keys that it does not
/// name, unless it asks for them: a model that is unsure would invent some for ever, too.
fn compact(schema: &Value) -> Value {
    let mut schema = match close::closed(schema) {
        Value::Object(schema) => schema,
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
    use crate::core::constraint::mask::Grammars;
    use gristmill_llm::chat::markup::{JSON, MARKERS, TAGS};
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
    fn follow(form: &OutputConstraint, style: Markup, thinking: bool, text: &str) -> (String, bool) {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer, tokenizer.n_tokens());
        let mut constraint = grammars
            .compile(grammar(form, &style, &tokenizer).expect("small"), thinking.then_some(style.think[1]))
            .expect("a grammar");
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
        let form = OutputConstraint { calls: calls(), ..OutputConstraint::default() };
        let pair = |key: &str, value: &str| format!("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>");
        let tags = |arguments: &str| format!("<tool_call>weather{arguments}</tool_call>");
        let good = [
            (TAGS, tags(&pair("city", "New York"))),
            (TAGS, tags(&[pair("city", "Rome"), pair("days", "3"), pair("unit", "f")].concat())),
            (TAGS, "<tool_call>now</tool_call>".into()),
            (
                JSON,
                "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}</tool_call>"
                    .into(),
            ),
            (JSON, "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>".into()),
        ];
        for (style, text) in good {
            assert_eq!(follow(&form, style, false, &text), (text.clone(), true));
        }
        for (style, text, until) in [
            (TAGS, tags(""), "<tool_call>weather"),
            (TAGS, tags(&[pair("city", "Rome"), pair("days", "0")].concat()), "<arg_value>"),
            (TAGS, "<tool_call>never</tool_call>".into(), "<tool_call>n"),
            (JSON, "<tool_call>{\"name\": \"other\"".into(), "{\"name\": \""),
            (JSON, "Hello".into(), ""),
        ] {
            let (done, complete) = follow(&form, style, false, &text);
            assert!(!complete && done.ends_with(until) && done.len() < text.len(), "{text}: {done}");
        }
    }

    #[test]
    fn several_calls_only_where_they_are_wanted() {
        let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
        for several in [false, true] {
            let form = OutputConstraint {
                calls: vec![Callable { name: "now", parameters: None }],
                several,
                ..OutputConstraint::default()
            };
            let (done, complete) = follow(&form, JSON, false, &call.repeat(2));
            assert_eq!((done.matches("now").count(), complete), if several { (2, false) } else { (1, true) });
        }
    }

    #[test]
    fn reasoning_is_free_and_the_answer_is_not() {
        let schema = json!({ "type": "object", "properties": { "x": { "type": "boolean" } }, "required": ["x"], "additionalProperties": false });
        let schema = Form::Schema(schema);
        let form = OutputConstraint { form: Some(&schema), ..OutputConstraint::default() };
        let text = "Hm. So?</think>{\"x\": true}";
        assert_eq!(follow(&form, JSON, true, text), (text.into(), true));
        assert_eq!(follow(&form, JSON, true, "Hm.</think>No").0, "Hm.</think>");
        assert_eq!(follow(&form, JSON, false, "Hm.").0, "");
    }
}
