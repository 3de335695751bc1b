//! Messages and tools of a chat request.

use crate::api::role::Role;
use crate::core::error::RequestError;
use crate::net::body::IgnoredFields;
use crate::net::lenient::{JsonText, null_default};
use gristmill_llm::chat::Message;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
pub struct OllamaMessage {
    role: Role,
    #[serde(default, deserialize_with = "null_default")]
    content: String,
    thinking: Option<String>,
    images: Option<Vec<Value>>,
    tool_calls: Option<Vec<RequestCall>>,
    tool_name: Option<String>,
    /// The older name of `tool_name`.
    name: Option<String>,
    tool_call_id: Option<String>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct RequestCall {
    function: CalledFunction,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct CalledFunction {
    name: String,
    #[serde(default)]
    arguments: JsonText,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// Converts the messages into the form that chat templates take.
///
/// # Errors
/// The first message that is malformed or that a text-only model cannot process.
pub fn convert(messages: Vec<OllamaMessage>) -> Result<Vec<Message>, RequestError> {
    messages
        .into_iter()
        .enumerate()
        .map(|(i, message)| message.convert(i))
        .collect()
}

impl OllamaMessage {
    fn convert(self, i: usize) -> Result<Message, RequestError> {
        if self.images.is_some_and(|images| !images.is_empty()) {
            let message = "images are not possible: this model reads text only";
            return Err(RequestError::parameter(
                format!("messages[{i}].images"),
                message,
            ));
        }
        let calls: Vec<Value> = self
            .tool_calls
            .unwrap_or_default()
            .into_iter()
            .map(|RequestCall { function, .. }| {
                let JsonText(arguments) = function.arguments;
                let arguments = if arguments.is_empty() { "{}".into() } else { arguments };
                json!({ "type": "function", "function": { "name": function.name, "arguments": arguments } })
            })
            .collect();
        let mut message = Message::new(self.role.name(), self.content);
        message.reasoning_content = self.thinking;
        message.tool_calls = (!calls.is_empty()).then(|| calls.into());
        message.tool_call_id = self.tool_call_id;
        message.name = self.tool_name.or(self.name);
        Ok(message)
    }
}
