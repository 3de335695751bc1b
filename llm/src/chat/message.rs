//! Messages, and what a template may know besides them.

use std::time::SystemTime;

use serde_json::{Map, Value as Json};

/// One message of a conversation, in the field names templates expect.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// "system", "user", "assistant" or "tool"; templates may know others.
    pub role: String,
    /// A string, or a list of parts such as `{"type": "text", "text": ".."}`; null for a message of tool calls only.
    pub content: Json,
    /// The assistant's reasoning, where it is kept apart from the content.
    pub reasoning_content: Option<String>,
    /// The assistant's tool calls: a list of `{"function": {"name": "..", "arguments": {..}}}`. Arguments that are a
    /// string of a JSON object (the form of OpenAI's interface) are parsed, since templates iterate over them.
    pub tool_calls: Option<Json>,
    /// Which call a tool's message answers.
    pub tool_call_id: Option<String>,
    /// The speaker's or tool's name.
    pub name: Option<String>,
    /// Further fields, for templates that know them. Fields above take precedence.
    pub extra: Map<String, Json>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Json::String(content.into()), ..Self::default() }
    }

    /// A message of the role "system".
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A message of the role "user".
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// A message of the role "assistant".
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// A tool's result.
    pub fn tool(content: impl Into<String>) -> Self {
        Self::new("tool", content)
    }

    /// The message as templates see it; absent fields are left out, so that `is defined` tells.
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
        let call = if call.get("function").is_some() { &mut call["function"] } else { call };
        if let Some(arguments) = call.get_mut("arguments")
            && let Some(Ok(parsed @ Json::Object(_))) = arguments.as_str().map(serde_json::from_str)
        {
            *arguments = parsed;
        }
    }
    calls
}

/// What a template may know besides the messages.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// Ask for the assistant's next turn.
    pub add_generation_prompt: bool,
    /// Reasoning on or off, for models that can switch; `None` leaves the variable undefined (the model's default).
    pub enable_thinking: Option<bool>,
    /// Tool descriptions: a list of JSON objects. An empty list counts as none, since templates test only for presence.
    pub tools: Option<Json>,
    /// Further variables (`clear_thinking`, `forced_thinking`, …). Trusted: not for text from users.
    pub extra: Map<String, Json>,
    /// What `strftime_now` tells; `None` is the system's clock. In UTC.
    pub now: Option<SystemTime>,
}

/// A part of a rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The text.
    pub text: String,
    /// Whether special tokens may be recognised in it.
    pub trusted: bool,
}

impl Span {
    /// As [`Tokenizer::encode_spans`](crate::tokenizer::Tokenizer::encode_spans) takes them.
    pub fn pairs(spans: &[Self]) -> Vec<(&str, bool)> {
        spans.iter().map(|span| (span.text.as_str(), span.trusted)).collect()
    }

    /// The whole text.
    pub fn concat(spans: &[Self]) -> String {
        spans.iter().map(|span| span.text.as_str()).collect()
    }
}
