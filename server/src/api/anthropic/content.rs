//! Messages of a request: blocks of text, thinking, tool calls, tool results and documents.

use crate::api::role::Role;
use crate::api::tool_choice::leave_out;
use crate::core::error::RequestError;
use crate::net::body::IgnoredFields;
use crate::net::lenient::{JsonText, null_default};
use gristmill_llm::chat::Message;
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
pub struct AnthropicMessage {
    role: Role,
    #[serde(deserialize_with = "null_default")]
    content: MessageContent,
    #[serde(flatten)]
    _others: IgnoredFields,
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
    /// Content of a result, in a form of its own for each hosted tool.
    content: Option<Value>,
    is_error: Option<bool>,
    /// Further fields, of documents and search results.
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Converts the messages into the form that chat templates take. Blocks without a text are named in
/// `ignored`.
///
/// # Errors
/// The first block that is malformed or that a text-only model cannot process.
pub fn convert(
    system: Option<MessageContent>,
    messages: Vec<AnthropicMessage>,
    ignored: &mut Vec<String>,
) -> Result<Vec<Message>, RequestError> {
    if messages.is_empty() {
        return Err(RequestError::parameter(
            "messages",
            "messages is empty; a conversation needs at least one",
        ));
    }
    let mut turns = Turns {
        out: Vec::new(),
        ignored,
    };
    if let Some(system) = system {
        turns.out.push(Message::system(system.text("system")?));
    }
    for (i, message) in messages.into_iter().enumerate() {
        turns.push(message, &format!("messages[{i}]"))?;
    }
    Ok(turns.out)
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

/// Messages of the conversation, in order; texts of one role and turn are joined.
struct Turns<'a> {
    out: Vec<Message>,
    ignored: &'a mut Vec<String>,
}

/// Blocks of a message that have not become a message yet.
#[derive(Default)]
struct Begun {
    text: String,
    reasoning: String,
    calls: Vec<Value>,
}

impl Turns<'_> {
    fn push(&mut self, message: AnthropicMessage, at: &str) -> Result<(), RequestError> {
        let role = message.role;
        let blocks = match message.content {
            MessageContent::Text(text) => {
                self.out.push(Message::new(role.name(), text));
                return Ok(());
            }
            MessageContent::Blocks(blocks) => blocks,
        };
        let (mut begun, before) = (Begun::default(), self.out.len());
        for (j, block) in blocks.into_iter().enumerate() {
            self.block(role, block, &format!("{at}.content[{j}]"), &mut begun)?;
        }
        // A message of tool results alone produces no other message.
        if self.out.len() == before || !begun.is_empty() {
            self.out.push(begun.message(role));
        }
        Ok(())
    }
    /// Adds a block to the begun message or, if it is a result, after it.
    fn block(
        &mut self,
        role: Role,
        block: ContentBlock,
        at: &str,
        begun: &mut Begun,
    ) -> Result<(), RequestError> {
        let is_answer = role == Role::Assistant;
        match block.kind.as_str() {
            "text" => begun.text += &block.text.ok_or_else(|| lacks(at, "text"))?,
            "thinking" if is_answer => {
                begun.reasoning += &block.thinking.ok_or_else(|| lacks(at, "thinking"))?
            }
            "tool_use" | "server_tool_use" | "mcp_tool_use" if is_answer => {
                begun.calls.push(block.call(at)?)
            }
            "tool_result" if role == Role::User => self.out.push(block.result(self.ignored)),
            // Hosted tools answer within the message.
            kind if is_answer && kind.ends_with("_tool_result") => {
                self.out.push(std::mem::take(begun).message(role));
                self.out.push(block.result(self.ignored));
            }
            "document" | "search_result" => {
                let text = block.document().ok_or_else(|| refused(at, &block.kind))?;
                begun.text += &text;
            }
            // The summary of earlier turns.
            "compaction" if block.content.as_ref().is_some_and(Value::is_string) => {
                begun.text += block.content.as_ref().and_then(Value::as_str).unwrap_or("");
            }
            // Redacted thinking is encrypted; only Anthropic's models can read it.
            "redacted_thinking" if is_answer => {}
            kind if is_answer || kind == "container_upload" => {
                leave_out("messages", kind, self.ignored)
            }
            kind => return Err(refused(at, kind)),
        }
        Ok(())
    }
}

impl Begun {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }
    fn message(self, role: Role) -> Message {
        let mut message = Message::new(role.name(), self.text);
        message.reasoning_content = (!self.reasoning.is_empty()).then_some(self.reasoning);
        message.tool_calls = (!self.calls.is_empty()).then(|| self.calls.into());
        message
    }
}

impl ContentBlock {
    fn call(self, at: &str) -> Result<Value, RequestError> {
        let name = self.name.ok_or_else(|| lacks(at, "name"))?;
        let arguments = self.input.unwrap_or_default().0;
        let function = json!({ "name": name, "arguments": arguments });
        Ok(json!({ "id": self.id, "type": "function", "function": function }))
    }
    fn result(self, ignored: &mut Vec<String>) -> Message {
        let text = result_text(self.content.unwrap_or_default(), ignored);
        let text = if self.is_error == Some(true) {
            format!("Error: {text}")
        } else {
            text
        };
        Message {
            tool_call_id: self.tool_use_id,
            ..Message::new("tool", text)
        }
    }
    /// Returns the text of a document or search result, below its title; `None` of a binary one.
    fn document(&self) -> Option<String> {
        let text = match self.kind.as_str() {
            "document" => source_text(self.others.get("source")?)?,
            _ => content_text(self.content.as_ref()?)?,
        };
        let headings = ["title", "source", "context"].into_iter();
        let headings = headings.filter_map(|name| self.others.get(name)?.as_str());
        let lines: Vec<&str> = headings.chain([text.as_str()]).collect();
        Some(lines.join("\n") + "\n\n")
    }
}

/// Returns the text of a document's source; `None` of a binary or a remote one.
fn source_text(source: &Value) -> Option<String> {
    match source["type"].as_str()? {
        "text" => source["data"].as_str().map(str::to_owned),
        "content" => content_text(&source["content"]),
        _ => None,
    }
}

/// Returns a string, or the joined texts of blocks; `None` if some are not text.
fn content_text(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => blocks.iter().map(|block| block["text"].as_str()).collect(),
        _ => None,
    }
}

/// Returns the text of a tool's result. Images become a note, as a conversation would end
/// otherwise; they are named in `ignored`.
fn result_text(content: Value, ignored: &mut Vec<String>) -> String {
    let blocks = match content {
        Value::Null => return String::new(),
        Value::String(text) => return text,
        Value::Array(blocks) => blocks,
        other => vec![other],
    };
    let text = |block: Value| {
        let kind = block["type"].as_str().unwrap_or_default().to_owned();
        if let (true, Some(text)) = (kind == "text" || kind.is_empty(), block["text"].as_str()) {
            return text.to_owned();
        }
        if let Value::String(text) = block {
            return text;
        }
        let is_binary = kind == "image" || block["source"]["type"] == "base64";
        match serde_json::from_value::<ContentBlock>(block.clone()) {
            Ok(block) if ["document", "search_result"].contains(&block.kind.as_str()) => {
                block.document()
            }
            _ if is_binary => None,
            // Results of hosted tools are spelt out.
            _ => Some(block.to_string()),
        }
        .unwrap_or_else(|| {
            leave_out("messages", &kind, ignored);
            format!("[{kind} left out: this model reads text only]")
        })
    };
    blocks.into_iter().map(text).collect()
}
