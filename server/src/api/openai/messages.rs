//! Messages of a chat request.

use crate::api::role::Role;
use crate::core::error::RequestError;
use crate::net::body::IgnoredFields;
use crate::net::lenient::{JsonText, null_is_default};
use gristmill_llm::chat::Message;
use serde::Deserialize;
use serde_json::{Value, json};

/// A message as clients send it.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct RequestMessage {
    role: Role,
    #[serde(default, deserialize_with = "null_is_default")]
    content: Option<Content>,
    reasoning_content: Option<String>,
    /// vLLM's name of `reasoning_content`; clients repeat one, the other or both.
    reasoning: Option<Value>,
    name: Option<String>,
    tool_calls: Option<Vec<RequestCall>>,
    /// The call of the time before `tool_calls`.
    function_call: Option<CalledFunction>,
    tool_call_id: Option<String>,
    #[serde(flatten)]
    _others: IgnoredFields,
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

impl Default for Content {
    fn default() -> Content {
        Content::Text(String::new())
    }
}

/// A part of a message; a string is its text.
#[derive(Deserialize, Clone, Debug)]
#[serde(untagged)]
enum ContentPart {
    Text(String),
    Typed(TypedPart),
}

#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct TypedPart {
    #[serde(rename = "type", default = "text_kind")]
    kind: String,
    #[serde(default, deserialize_with = "null_is_default")]
    text: Option<String>,
    refusal: Option<String>,
    /// Text of a part of type `thinking`.
    thinking: Option<String>,
    /// Identifier, function and arguments of a part of type `tool_use`.
    id: Option<String>,
    name: Option<String>,
    input: Option<JsonText>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct RequestCall {
    id: Option<String>,
    function: Option<CalledFunction>,
    /// The call of a tool of type `custom`, whose input is a text.
    custom: Option<CustomCall>,
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

#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct CustomCall {
    name: String,
    #[serde(default)]
    input: JsonText,
    #[serde(flatten)]
    _others: IgnoredFields,
}

impl RequestCall {
    /// Returns the call in the form of chat templates; `None` without a function.
    fn to_json(&self) -> Option<Value> {
        let function = match (&self.function, &self.custom) {
            (Some(function), _) => function.to_json(),
            (None, Some(CustomCall { name, input, .. })) => {
                json!({ "name": name, "arguments": { "input": input.0 } })
            }
            (None, None) => return None,
        };
        Some(json!({ "id": self.id, "type": "function", "function": function }))
    }
}

impl CalledFunction {
    fn to_json(&self) -> Value {
        json!({ "name": self.name, "arguments": self.arguments.0 })
    }
}

impl ContentPart {
    /// Returns the call of a part of type `tool_use` in the form of chat templates.
    fn call(&self) -> Option<Value> {
        let ContentPart::Typed(part) = self else {
            return None;
        };
        let name = part.name.as_ref().filter(|_| part.kind == "tool_use")?;
        let input = part.input.as_ref().map_or("{}", |input| &input.0);
        let function = json!({ "name": name, "arguments": input });
        Some(json!({ "id": part.id, "type": "function", "function": function }))
    }
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
    let calls = message.calls(i)?;
    let (text, thought) = match &message.content {
        // A tool that answers nothing has no content.
        None if matches!(message.role, Role::Assistant | Role::Tool) => Default::default(),
        None => {
            return Err(RequestError::parameter(
                format!("messages[{i}].content"),
                "this message has no content",
            ));
        }
        Some(Content::Text(text)) => (text.clone(), String::new()),
        Some(Content::Parts(parts)) => join(i, message.role, parts)?,
    };
    let reasoning = message.reasoning.as_ref().and_then(Value::as_str);
    let thought = (!thought.is_empty()).then_some(thought.as_str());
    let names = [message.reasoning_content.as_deref(), reasoning, thought];
    let mut names = names.into_iter().flatten();
    let reasoning = names.clone().find(|text| !text.is_empty()).or(names.next());
    Ok(Message {
        role: message.role.name().into(),
        content: text.into(),
        reasoning_content: reasoning.map(str::to_owned),
        tool_calls: (!calls.is_empty()).then(|| calls.into()),
        tool_call_id: message.tool_call_id.clone(),
        name: message.name.clone(),
        ..Message::default()
    })
}

impl RequestMessage {
    /// Returns the calls in the form of chat templates; the message has index `i`.
    fn calls(&self, i: usize) -> Result<Vec<Value>, RequestError> {
        let calls = self.tool_calls.as_deref().unwrap_or_default();
        if !calls.is_empty() && self.role != Role::Assistant {
            let at = format!("messages[{i}].tool_calls");
            return Err(RequestError::parameter(
                at,
                "only the assistant calls tools",
            ));
        }
        let call = |(j, call): (usize, &RequestCall)| {
            let at = || format!("messages[{i}].tool_calls[{j}].function");
            call.to_json().ok_or_else(|| RequestError::missing(at()))
        };
        let mut calls: Vec<Value> = calls
            .iter()
            .enumerate()
            .map(call)
            .collect::<Result<_, _>>()?;
        if let (true, Some(older)) = (calls.is_empty(), &self.function_call) {
            calls.push(json!({ "type": "function", "function": older.to_json() }));
        }
        // Anthropic's form of calls; converters repeat those of `tool_calls` in it.
        if let (true, Role::Assistant, Some(Content::Parts(parts))) =
            (calls.is_empty(), self.role, &self.content)
        {
            calls.extend(parts.iter().filter_map(ContentPart::call));
        }
        Ok(calls)
    }
}

/// Joins the parts of message `i`: returns its text and its reasoning.
fn join(i: usize, role: Role, parts: &[ContentPart]) -> Result<(String, String), RequestError> {
    let (mut text, mut thought) = (String::new(), String::new());
    for (j, part) in parts.iter().enumerate() {
        let part = match part {
            ContentPart::Text(more) => {
                text += more;
                continue;
            }
            ContentPart::Typed(part) => part,
        };
        let lacks = || {
            RequestError::parameter(
                format!("messages[{i}].content[{j}]"),
                "this part has no text",
            )
        };
        match part.kind.as_str() {
            "text" | "input_text" | "output_text" => {
                text += part.text.as_deref().ok_or_else(lacks)?
            }
            "refusal" => text += part.refusal.as_deref().ok_or_else(lacks)?,
            "thinking" | "reasoning" | "reasoning_text" => {
                let part = part.thinking.as_deref().or(part.text.as_deref());
                thought += part.ok_or_else(lacks)?;
            }
            "tool_use" if role == Role::Assistant => {}
            kind => {
                let kind: String = kind.chars().take(40).collect();
                let message =
                    format!("a part of type `{kind}` is not possible: this model reads text only");
                return Err(RequestError::parameter(
                    format!("messages[{i}].content[{j}].type"),
                    message,
                ));
            }
        }
    }
    Ok((text, thought))
}
