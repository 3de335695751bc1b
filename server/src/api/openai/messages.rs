//! Messages of a chat request.

use crate::core::error::RequestError;
use crate::net::body::IgnoredFields;
use crate::net::lenient::JsonText;
use gristmill_llm::chat::Message;
use serde::Deserialize;
use serde_json::{Value, json};

/// A message as clients send it.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct RequestMessage {
    role: Role,
    content: Option<Content>,
    reasoning_content: Option<String>,
    /// vLLM's name of `reasoning_content`; clients repeat one, the other or both.
    reasoning: Option<Value>,
    name: Option<String>,
    tool_calls: Option<Vec<RequestCall>>,
    tool_call_id: Option<String>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Role {
    /// The newer name of the system role.
    Developer,
    System,
    User,
    Assistant,
    /// Also by the name that it had when calls were of functions only.
    #[serde(alias = "function")]
    Tool,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(
    untagged,
    expecting = "expected a string or an array of parts with a type"
)]
enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct ContentPart {
    #[serde(rename = "type", default = "text_kind")]
    kind: String,
    text: Option<String>,
    refusal: Option<String>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct RequestCall {
    id: Option<String>,
    function: CalledFunction,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct CalledFunction {
    name: String,
    /// A JSON object, as text or as it is.
    #[serde(default)]
    arguments: JsonText,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// Type of a part that names none.
fn text_kind() -> String {
    "text".into()
}

/// Converts the messages into the form that chat templates take.
///
/// # Errors
/// The first message that is malformed or that a text-only model cannot process.
pub fn convert(messages: &[RequestMessage]) -> Result<Vec<Message>, RequestError> {
    if messages.is_empty() {
        return Err(RequestError::parameter(
            "messages",
            "messages is empty; a conversation needs at least one",
        ));
    }
    messages
        .iter()
        .enumerate()
        .map(|(i, message)| convert_one(i, message))
        .collect()
}

fn convert_one(i: usize, message: &RequestMessage) -> Result<Message, RequestError> {
    let role = match message.role {
        Role::Developer | Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let calls = message.tool_calls.as_deref().unwrap_or_default();
    if !calls.is_empty() && message.role != Role::Assistant {
        let at = format!("messages[{i}].tool_calls");
        return Err(RequestError::parameter(
            at,
            "only the assistant calls tools",
        ));
    }
    let text = match &message.content {
        // A tool that answers nothing has no content.
        None if matches!(message.role, Role::Assistant | Role::Tool) => String::new(),
        None => {
            return Err(RequestError::parameter(
                format!("messages[{i}].content"),
                "this message has no content",
            ));
        }
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => join(i, parts)?,
    };
    let calls: Vec<Value> = calls
        .iter()
        .map(|call| {
            let function =
                json!({ "name": call.function.name, "arguments": call.function.arguments.0 });
            json!({ "id": call.id, "type": "function", "function": function })
        })
        .collect();
    let reasoning = message.reasoning.as_ref().and_then(Value::as_str);
    let names = [message.reasoning_content.as_deref(), reasoning];
    let mut names = names.into_iter().flatten();
    let reasoning = names.clone().find(|text| !text.is_empty()).or(names.next());
    Ok(Message {
        role: role.into(),
        content: text.into(),
        reasoning_content: reasoning.map(str::to_owned),
        tool_calls: (!calls.is_empty()).then(|| calls.into()),
        tool_call_id: message.tool_call_id.clone(),
        name: message.name.clone(),
        ..Message::default()
    })
}

fn join(i: usize, parts: &[ContentPart]) -> Result<String, RequestError> {
    let texts = parts.iter().enumerate().map(|(j, part)| {
        let text = match part.kind.as_str() {
            "text" => part.text.as_deref(),
            "refusal" => part.refusal.as_deref(),
            kind => {
                let kind: String = kind.chars().take(40).collect();
                let message =
                    format!("a part of type `{kind}` is not possible: this model reads text only");
                return Err(RequestError::parameter(
                    format!("messages[{i}].content[{j}].type"),
                    message,
                ));
            }
        };
        text.ok_or_else(|| {
            RequestError::parameter(
                format!("messages[{i}].content[{j}]"),
                "this part has no text",
            )
        })
    });
    texts.collect()
}
