//! Chat messages and options of rendering.

use std::time::SystemTime;

use serde_json::{Map, Value as Json};

use super::complete;

/// One message of a conversation, with the field names that templates expect.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// "system", "user", "assistant" or "tool"; templates may accept others.
    pub role: String,
    /// A string, or a list of parts such as `{"type": "text", "text": ".."}`; null for a message
    /// with tool calls only.
    pub content: Json,
    /// Reasoning of the assistant, separate from the content.
    pub reasoning_content: Option<String>,
    /// Tool calls of the assistant: a list of
    /// `{"function": {"name": "..", "arguments": {..}}}`. Arguments given as a JSON string (the
    /// form of OpenAI's API) are parsed, because templates iterate over them; absent or empty ones
    /// become an empty object.
    pub tool_calls: Option<Json>,
    /// Identifier of the call that a tool message answers.
    pub tool_call_id: Option<String>,
    /// Name of the speaker or the tool.
    pub name: Option<String>,
    /// Additional fields for templates that read them. The fields above take precedence.
    pub extra: Map<String, Json>,
}

impl Message {
    /// Creates a plain-text message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Json::String(content.into()),
            ..Self::default()
        }
    }

    /// Creates a message with the role "system".
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// Creates a message with the role "user".
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// Creates a message with the role "assistant".
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// Creates a message with the role "tool": a call's result.
    pub fn tool(content: impl Into<String>) -> Self {
        Self::new("tool", content)
    }

    /// Returns the message as templates see it. Absent fields are omitted, so
    /// that `is defined` works.
    pub fn to_json(&self) -> Json {
        let mut map = Map::new();
        map.insert("role".into(), self.role.clone().into());
        map.insert("content".into(), self.content.clone());
        let text = |text: &Option<String>| text.clone().map(Json::String);
        for (key, value) in [
            ("reasoning_content", text(&self.reasoning_content)),
            ("tool_calls", self.tool_calls.clone().map(parse_arguments)),
            ("tool_call_id", text(&self.tool_call_id)),
            ("name", text(&self.name)),
        ] {
            if let Some(value) = value {
                map.insert(key.into(), value);
            }
        }
        for (key, value) in &self.extra {
            if !map.contains_key(key) {
                map.insert(key.clone(), value.clone());
            }
        }
        Json::Object(map)
    }
}

fn parse_arguments(mut calls: Json) -> Json {
    for call in calls.as_array_mut().into_iter().flatten() {
        // With or without the "function" level around name and arguments.
        let call = if call.get("function").is_some() {
            &mut call["function"]
        } else {
            call
        };
        let given = call.get("arguments").unwrap_or(&Json::Null);
        if let (Some(arguments), Some(call)) = (complete::parsed(given), call.as_object_mut()) {
            call.insert("arguments".into(), arguments.into());
        }
    }
    calls
}

/// Template variables in addition to the messages.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// Appends the opening of the assistant's next turn.
    pub add_generation_prompt: bool,
    /// Enables or disables reasoning, for models that support it; `None` leaves the variable
    /// undefined (the model's default).
    pub enable_thinking: Option<bool>,
    /// Tool descriptions: a list of JSON objects. An empty list means none, because templates
    /// test only for presence.
    pub tools: Option<Json>,
    /// Additional variables (`clear_thinking`, `forced_thinking`, …). Their texts are untrusted, as
    /// those of messages; the variables above take precedence.
    pub extra: Map<String, Json>,
    /// Time for `strftime_now`, formatted in UTC; `None` means the system clock.
    pub now: Option<SystemTime>,
}

/// A part of a rendered conversation with a single trust level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextSpan {
    /// Rendered text of this span.
    pub text: String,
    /// True if special tokens may be recognised in the text.
    pub trusted: bool,
}

impl TextSpan {
    /// Returns the spans as arguments of
    /// [`Tokenizer::encode_spans`](crate::tokenizer::Tokenizer::encode_spans).
    pub fn pairs(spans: &[Self]) -> Vec<(&str, bool)> {
        spans
            .iter()
            .map(|span| (span.text.as_str(), span.trusted))
            .collect()
    }

    /// Returns the concatenated text of all spans.
    pub fn concat(spans: &[Self]) -> String {
        spans.iter().map(|span| span.text.as_str()).collect()
    }
}
