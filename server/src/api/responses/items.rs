//! Input items of a request: messages, reasoning, function calls and their results.

use crate::core::error::RequestError;
use crate::net::body::IgnoredFields;
use crate::net::lenient::JsonText;
use gristmill_llm::chat::Message;
use serde::Deserialize;
use serde_json::{Value, json};

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
    content: Option<Content>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<JsonText>,
    output: Option<Content>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Role {
    Developer,
    System,
    User,
    Assistant,
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

/// Converts the input into messages in the form that chat templates take.
///
/// # Errors
/// The first item that is malformed or that a text-only model cannot process.
pub fn convert(
    instructions: Option<String>,
    input: RequestInput,
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
                item.convert(&format!("input[{i}]"), &mut out)?;
            }
        }
    }
    Ok(out)
}

impl Item {
    fn convert(self, at: &str, out: &mut Vec<Message>) -> Result<(), RequestError> {
        let lacks = |what: &str| {
            RequestError::parameter(
                format!("{at}.{what}"),
                format!("an item of this type needs `{what}`"),
            )
        };
        match self.kind.as_deref().unwrap_or("message") {
            "message" => {
                let role = match self.role.ok_or_else(|| lacks("role"))? {
                    Role::Developer | Role::System => "system",
                    Role::User => "user",
                    Role::Assistant => "assistant",
                };
                let text = self
                    .content
                    .ok_or_else(|| lacks("content"))?
                    .text(&format!("{at}.content"))?;
                match out
                    .last_mut()
                    .filter(|last| role == "assistant" && is_only_reasoning(last))
                {
                    Some(last) => last.content = text.into(),
                    None => out.push(Message::new(role, text)),
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
                let arguments = self.arguments.unwrap_or_default().0;
                let function = json!({ "name": name, "arguments": arguments });
                call(
                    out,
                    json!({ "id": self.call_id, "type": "function", "function": function }),
                );
            }
            "function_call_output" => {
                let text = self.output.map_or(Ok(String::new()), |output| {
                    output.text(&format!("{at}.output"))
                })?;
                let call_id = self.call_id.ok_or_else(|| lacks("call_id"))?;
                out.push(Message {
                    tool_call_id: Some(call_id),
                    ..Message::new("tool", text)
                });
            }
            kind => {
                let kind: String = kind.chars().take(40).collect();
                let message = format!("an item of type `{kind}` is not possible here");
                return Err(RequestError::parameter(format!("{at}.type"), message));
            }
        }
        Ok(())
    }
}

fn is_only_reasoning(message: &Message) -> bool {
    message.role == "assistant"
        && message.tool_calls.is_none()
        && message.content.as_str() == Some("")
}

/// Adds a call to the last message if it is the assistant's, otherwise to a new assistant message.
fn call(out: &mut Vec<Message>, call: Value) {
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
