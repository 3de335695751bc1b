//! Writes tool calls as text in a markup, for templates without tool support and for
//! tool descriptions in prompts.

use serde_json::{Map, Value as Json};

use super::complete;
use super::json::{self, Style};
use super::markup::{Arguments, CallFormat, Frame, Markup, Name};

/// A tool call to be written as text.
#[derive(Clone, Copy, Debug)]
pub struct Spelt<'c> {
    /// Name of the called tool.
    pub name: &'c str,
    /// Arguments of the call by name.
    pub arguments: &'c Map<String, Json>,
}

/// Returns the calls as a model with this markup writes them.
pub fn calls(markup: &Markup, calls: &[Spelt<'_>]) -> String {
    let list = matches!(markup.form, CallFormat::Object { list: true, .. });
    let each: Vec<String> = calls.iter().map(|call| one(markup, call)).collect();
    let ([open, close], between) = (markup.section, if list { ", " } else { between(markup) });
    let inner = each.join(between);
    match list {
        true => format!("{open}[{inner}]{close}"),
        false => format!("{open}{inner}{close}"),
    }
}

/// Reads arguments of a call: an object or its JSON text. Wraps anything else in an object.
pub fn arguments(arguments: &Json) -> Map<String, Json> {
    complete::object(arguments)
}

/// Returns the result of a call as text of the user.
pub fn result(text: &str) -> String {
    format!("<tool_response>{text}</tool_response>")
}

/// Returns the text between two calls.
fn between(markup: &Markup) -> &'static str {
    match markup.frame {
        Frame::Messages(messages) => messages.start[0],
        Frame::Text if markup.is_bare() => "; ",
        Frame::Text => "",
    }
}

fn one(markup: &Markup, call: &Spelt<'_>) -> String {
    let [open, close] = markup.call;
    let body = match markup.form {
        CallFormat::Object { arguments, .. } => {
            format!(
                "{{\"name\": {}, \"{arguments}\": {}}}",
                Json::from(call.name),
                object(call.arguments)
            )
        }
        CallFormat::Named(Name { before, id, after }, arguments) => {
            let id = id
                .map(|id| format!("{}{}", id.before, id.example))
                .unwrap_or_default();
            format!(
                "{before}{}{id}{after}{}",
                call.name,
                body(arguments, call.arguments)
            )
        }
    };
    let end = match markup.frame {
        // The last end text is that of a call.
        Frame::Messages(messages) => messages.ends.last().copied().unwrap_or_default(),
        Frame::Text => close,
    };
    format!("{open}{body}{end}")
}

fn body(arguments: Arguments, values: &Map<String, Json>) -> String {
    match arguments {
        Arguments::Json => object(values),
        Arguments::Tags { key, value } => {
            let pair = |(name, it): (&String, &Json)| {
                let text = it.as_str().map_or_else(|| dump(it), str::to_owned);
                [key[0], name, key[1], value[0], &text, value[1]].concat()
            };
            values.iter().map(pair).collect()
        }
        Arguments::Bare(quote) => format!("{}}}", pairs(values, quote)),
    }
}

/// Writes `key:value,key:value` with sorted keys.
fn pairs(values: &Map<String, Json>, quote: &str) -> String {
    let mut sorted: Vec<(&String, &Json)> = values.iter().collect();
    sorted.sort_by_key(|(key, _)| *key);
    let each: Vec<String> = sorted
        .into_iter()
        .map(|(key, it)| format!("{key}:{}", bare(it, quote)))
        .collect();
    each.join(",")
}

fn bare(value: &Json, quote: &str) -> String {
    match value {
        Json::String(text) => format!("{quote}{text}{quote}"),
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| bare(item, quote)).collect();
            format!("[{}]", items.join(","))
        }
        Json::Object(values) => format!("{{{}}}", pairs(values, quote)),
        Json::Null | Json::Bool(_) | Json::Number(_) => value.to_string(),
    }
}

fn object(values: &Map<String, Json>) -> String {
    dump(&Json::Object(values.clone()))
}

/// Writes JSON in Python's format, which matches the training data.
fn dump(value: &Json) -> String {
    let mut out = String::new();
    json::write(value, &Style::default(), 0, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::markup::TABLE;
    use serde_json::json;

    #[test]
    fn calls_look_as_models_write_them() {
        let arguments = json!({ "city": "New York", "days": [1, 2] });
        let call = Spelt {
            name: "weather",
            arguments: arguments.as_object().unwrap(),
        };
        let spelt = |name: &str| {
            let row = TABLE.iter().find(|row| row.name == name).unwrap();
            calls(
                row,
                &[
                    call,
                    Spelt {
                        name: "now",
                        arguments: &Map::new(),
                    },
                ],
            )
        };
        let json = r#"{"city": "New York", "days": [1, 2]}"#;
        for (name, text) in [
            (
                "hermes",
                format!(
                    "<tool_call>\n{{\"name\": \"weather\", \"arguments\": {json}}}\n</tool_call>\
                     <tool_call>\n{{\"name\": \"now\", \"arguments\": {{}}}}\n</tool_call>"
                ),
            ),
            (
                "qwen3-coder",
                "<tool_call>\n<function=weather>\n<parameter=city>\nNew York\n</parameter>\n<parameter=days>\n[1, 2]\n</parameter>\n\
                 </function>\n</tool_call><tool_call>\n<function=now>\n</function>\n</tool_call>"
                    .into(),
            ),
            (
                "minimax-m2",
                "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">New York</parameter>\n\
                 <parameter name=\"days\">[1, 2]</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n\n</minimax:tool_call>"
                    .into(),
            ),
            (
                "deepseek-v3.1",
                format!(
                    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{json}<｜tool▁call▁end｜>\
                     <｜tool▁call▁begin｜>now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
                ),
            ),
            (
                "kimi-k2",
                format!(
                    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{json}<|tool_call_end|>\
                     <|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|>"
                ),
            ),
            ("mistral", format!("[TOOL_CALLS]weather[ARGS]{json}[TOOL_CALLS]now[ARGS]{{}}")),
            (
                "gemma4",
                "<|tool_call>call:weather{city:<|\"|>New York<|\"|>,days:[1,2]}<tool_call|><|tool_call>call:now{}<tool_call|>".into(),
            ),
        ] {
            assert_eq!(spelt(name), text, "{name}");
        }
    }
}
