//! Messages of a request: blocks of text, thinking, tool calls and tool results.

use crate::core::error::RequestError;
use crate::net::body::IgnoredFields;
use crate::net::lenient::{JsonText, null_default};
use gristmill_llm::chat::Message;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
pub struct AnthropicMessage {
    role: Role,
    #[serde(deserialize_with = "null_default")]
    content: MessageContent,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    User,
    Assistant,
}

/// Message content: a string or an array of blocks.
#[derive(Deserialize, Debug)]
#[serde(
    untagged,
    expecting = "expected a string or an array of blocks with a type"
)]
pub enum MessageContent {
    Text(String),
    Blocks(Vec<ContentBlock>),
}

impl Default for MessageContent {
    fn default() -> MessageContent {
        MessageContent::Text(String::new())
    }
}

/// One content block; the `type` determines which of the fields are set.
#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
pub struct ContentBlock {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<JsonText>,
    tool_use_id: Option<String>,
    content: Option<Box<MessageContent>>,
    is_error: Option<bool>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// Converts the messages into the form that chat templates take.
///
/// # Errors
/// The first block that is malformed or that a text-only model cannot process.
pub fn convert(
    system: Option<MessageContent>,
    messages: Vec<AnthropicMessage>,
) -> Result<Vec<Message>, RequestError> {
    if messages.is_empty() {
        return Err(RequestError::parameter(
            "messages",
            "messages is empty; a conversation needs at least one",
        ));
    }
    let mut out = Vec::new();
    if let Some(system) = system {
        out.push(Message::system(system.text("system")?));
    }
    for (i, message) in messages.into_iter().enumerate() {
        message.convert(&format!("messages[{i}]"), &mut out)?;
    }
    Ok(out)
}

impl MessageContent {
    /// Returns the text, or the concatenated text blocks; other block types are errors.
    fn text(self, at: &str) -> Result<String, RequestError> {
        match self {
            MessageContent::Text(text) => Ok(text),
            MessageContent::Blocks(blocks) => {
                let texts =
                    blocks
                        .into_iter()
                        .enumerate()
                        .map(|(j, block)| match block.kind.as_str() {
                            "text" => block
                                .text
                                .ok_or_else(|| lacks(&format!("{at}[{j}]"), "text")),
                            kind => Err(refused(&format!("{at}[{j}]"), kind)),
                        });
                texts.collect()
            }
        }
    }
}

fn refused(at: &str, kind: &str) -> RequestError {
    let kind: String = kind.chars().take(40).collect();
    let message =
        format!("a block of type `{kind}` is not possible here: this model reads text only");
    RequestError::parameter(format!("{at}.type"), message)
}

fn lacks(at: &str, what: &str) -> RequestError {
    RequestError::parameter(
        format!("{at}.{what}"),
        format!("a block of this type needs `{what}`"),
    )
}

impl AnthropicMessage {
    fn convert(self, at: &str, out: &mut Vec<Message>) -> Result<(), RequestError> {
        let role = match self.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        let blocks = match self.content {
            MessageContent::Text(text) => {
                out.push(Message::new(role, text));
                return Ok(());
            }
            MessageContent::Blocks(blocks) => blocks,
        };
        let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        let mut results = false;
        for (j, block) in blocks.into_iter().enumerate() {
            let at = format!("{at}.content[{j}]");
            match (block.kind.as_str(), self.role) {
                ("text", _) => text += &block.text.ok_or_else(|| lacks(&at, "text"))?,
                ("thinking", Role::Assistant) => {
                    reasoning += &block.thinking.ok_or_else(|| lacks(&at, "thinking"))?
                }
                // Redacted thinking is encrypted; only Anthropic's models can read it.
                ("redacted_thinking", Role::Assistant) => {}
                ("tool_use", Role::Assistant) => calls.push(block.call(&at)?),
                ("tool_result", Role::User) => {
                    out.push(block.result(&at)?);
                    results = true;
                }
                (kind, _) => return Err(refused(&at, kind)),
            }
        }
        // A message of tool results alone produces no user message.
        if !(results && text.is_empty()) {
            let mut message = Message::new(role, text);
            message.reasoning_content = (!reasoning.is_empty()).then_some(reasoning);
            message.tool_calls = (!calls.is_empty()).then(|| calls.into());
            out.push(message);
        }
        Ok(())
    }
}

impl ContentBlock {
    fn call(self, at: &str) -> Result<Value, RequestError> {
        let name = self.name.ok_or_else(|| lacks(at, "name"))?;
        let arguments = self.input.unwrap_or_default().0;
        let function = json!({ "name": name, "arguments": arguments });
        Ok(json!({ "id": self.id, "type": "function", "function": function }))
    }
    fn result(self, at: &str) -> Result<Message, RequestError> {
        let text = self.content.map_or(Ok(String::new()), |content| {
            content.text(&format!("{at}.content"))
        })?;
        let text = if self.is_error == Some(true) {
            format!("Error: {text}")
        } else {
            text
        };
        Ok(Message {
            tool_call_id: self.tool_use_id,
            ..Message::new("tool", text)
        })
    }
}
