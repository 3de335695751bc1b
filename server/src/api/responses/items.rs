//! Input items of a request: messages, reasoning, function calls and their results.

use crate::api::role::Role;
use crate::api::tool_choice::leave_out;
use crate::core::error::RequestError;
use crate::net::body::IgnoredFields;
use crate::net::lenient::{JsonText, null_is_default};
use gristmill_llm::chat::Message;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Input of a request: a user message or a list of items.
#[derive(Deserialize, Debug)]
#[serde(untagged, expecting = "expected a string or an array of items")]
pub enum RequestInput {
    /// A single user message.
    Text(String),
    /// Items of a conversation, in order.
    Items(Vec<Item>),
}

/// One input item; the `type` determines which of the fields are set.
#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
pub struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<Role>,
    #[serde(default, deserialize_with = "null_is_default")]
    content: Option<Content>,
    id: Option<String>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<JsonText>,
    /// Result of a call: a text, an array of parts, or a form of its own for each hosted tool.
    output: Option<Value>,
    /// Further fields, of calls of hosted tools.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize, Debug)]
#[serde(
    untagged,
    expecting = "expected a string or an array of parts with a type"
)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

impl Default for Content {
    fn default() -> Content {
        Content::Text(String::new())
    }
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    refusal: Option<String>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// Converts the input into messages in the form that chat templates take. Items that have no text,
/// such as searches of other models, are named in `ignored`.
///
/// # Errors
/// The first item that is malformed or that a text-only model cannot process.
pub fn convert(
    instructions: Option<String>,
    input: RequestInput,
    ignored: &mut Vec<String>,
) -> Result<Vec<Message>, RequestError> {
    let mut out: Vec<Message> = instructions.map(Message::system).into_iter().collect();
    match input {
        RequestInput::Text(text) => out.push(Message::user(text)),
        RequestInput::Items(items) if items.is_empty() => {
            return Err(RequestError::parameter(
                "input",
                "input is empty; a conversation needs at least one item",
            ));
        }
        RequestInput::Items(items) => {
            for (i, item) in items.into_iter().enumerate() {
                item.convert(&format!("input[{i}]"), &mut out, ignored)?;
            }
        }
    }
    Ok(out)
}

impl Item {
    fn convert(
        self,
        at: &str,
        out: &mut Vec<Message>,
        ignored: &mut Vec<String>,
    ) -> Result<(), RequestError> {
        let lacks = |what: &str| {
            RequestError::parameter(
                format!("{at}.{what}"),
                format!("an item of this type needs `{what}`"),
            )
        };
        match self.kind.as_deref().unwrap_or("message") {
            "message" => {
                let role = self.role.ok_or_else(|| lacks("role"))?;
                let text = self
                    .content
                    .ok_or_else(|| lacks("content"))?
                    .text(&format!("{at}.content"))?;
                match out
                    .last_mut()
                    .filter(|last| role == Role::Assistant && is_only_reasoning(last))
                {
                    Some(last) => last.content = text.into(),
                    None => out.push(Message::new(role.name(), text)),
                }
            }
            "reasoning" => {
                let text = self.content.map_or(Ok(String::new()), |content| {
                    content.text(&format!("{at}.content"))
                })?;
                let mut message = Message::assistant("");
                message.reasoning_content = (!text.is_empty()).then_some(text);
                out.push(message);
            }
            "function_call" => {
                let name = self.name.ok_or_else(|| lacks("name"))?;
                call(
                    out,
                    self.call_id,
                    &name,
                    &self.arguments.unwrap_or_default().0,
                );
            }
            "function_call_output" => {
                let id = self.call_id.ok_or_else(|| lacks("call_id"))?;
                let text = result_text(self.output.unwrap_or_default(), ignored);
                out.push(result(Some(id), text));
            }
            // The item is not stored, so that its content is not known.
            "item_reference" => {
                let message = "items are not stored: send the conversation so far as input";
                return Err(RequestError::parameter(format!("{at}.type"), message));
            }
            _ => self.convert_hosted(out, ignored),
        }
        Ok(())
    }
    /// Spells out a call of a hosted tool or its result, if it has the parts of one; other items
    /// are left out.
    fn convert_hosted(mut self, out: &mut Vec<Message>, ignored: &mut Vec<String>) {
        let kind = self.kind.take().unwrap_or_default();
        let mut field = |name: &str| self.others.remove(name).filter(|value| !value.is_null());
        let input = field("input").map(|input| json!({ "input": input }).to_string());
        let action = ["action", "operation"].into_iter().find_map(&mut field);
        let code = field("code").map(|code| json!({ "code": code }).to_string());
        let output = self.output.take().or_else(|| field("outputs"));
        let arguments = self.arguments.take().map(|arguments| arguments.0);
        let arguments = arguments
            .or(input)
            .or(action.map(|action| action.to_string()))
            .or(code);
        let id = self.call_id.take().or(self.id.take());
        if kind.ends_with("_output") {
            match output {
                Some(output) => out.push(result(id, result_text(output, ignored))),
                None => leave_out("input", &kind, ignored),
            }
            return;
        }
        // A search names its query only: its results are not told.
        let is_call = kind.ends_with("_call") && kind != "web_search_call";
        match arguments.filter(|_| is_call) {
            Some(arguments) => {
                let name = self
                    .name
                    .as_deref()
                    .unwrap_or(kind.trim_end_matches("_call"));
                call(out, id.clone(), name, &arguments);
                if let Some(output) = output {
                    out.push(result(id, result_text(output, ignored)));
                }
            }
            None => leave_out("input", &kind, ignored),
        }
    }
}

fn result(id: Option<String>, text: String) -> Message {
    Message {
        tool_call_id: id,
        ..Message::new("tool", text)
    }
}

/// Returns the text of a call's result. Images become a note, as a conversation would end
/// otherwise; they are named in `ignored`.
fn result_text(output: Value, ignored: &mut Vec<String>) -> String {
    let parts = match output {
        Value::Null => return String::new(),
        Value::String(text) => return text,
        Value::Array(parts) => parts,
        other => vec![other],
    };
    let text = |part: Value| {
        let kind = part["type"].as_str().unwrap_or_default();
        if let Some(text) = part["text"].as_str().or(part.as_str()) {
            return text.to_owned();
        }
        if ["image", "file", "audio", "screenshot"]
            .iter()
            .any(|binary| kind.contains(binary))
        {
            leave_out("input", kind, ignored);
            return format!("[{kind} left out: this model reads text only]");
        }
        part.to_string()
    };
    parts.into_iter().map(text).collect()
}

fn is_only_reasoning(message: &Message) -> bool {
    message.role == "assistant"
        && message.tool_calls.is_none()
        && message.content.as_str() == Some("")
}

/// Adds a call to the last message if it is the assistant's, otherwise to a new assistant message.
fn call(out: &mut Vec<Message>, id: Option<String>, name: &str, arguments: &str) {
    let function = json!({ "name": name, "arguments": arguments });
    let call = json!({ "id": id, "type": "function", "function": function });
    if out.last().is_none_or(|last| last.role != "assistant") {
        out.push(Message::assistant(""));
    }
    let Some(last) = out.last_mut() else { return };
    match last.tool_calls.as_mut().and_then(Value::as_array_mut) {
        Some(calls) => calls.push(call),
        None => last.tool_calls = Some(json!([call])),
    }
}

impl Content {
    fn text(self, at: &str) -> Result<String, RequestError> {
        let parts = match self {
            Content::Text(text) => return Ok(text),
            Content::Parts(parts) => parts,
        };
        let texts = parts.into_iter().enumerate().map(|(j, part)| {
            let text = match part.kind.as_str() {
                "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => {
                    part.text
                }
                "refusal" => part.refusal,
                kind => {
                    let kind: String = kind.chars().take(40).collect();
                    let message = format!(
                        "a part of type `{kind}` is not possible: this model reads text only"
                    );
                    return Err(RequestError::parameter(format!("{at}[{j}].type"), message));
                }
            };
            text.ok_or_else(|| {
                RequestError::parameter(format!("{at}[{j}]"), "this part has no text")
            })
        });
        texts.collect()
    }
}
