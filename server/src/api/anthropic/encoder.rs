//! Encodes a response as an Anthropic message: content blocks, one open at a time.

use super::error::to_json;
use crate::api::interface::ResponseEncoder;
use crate::core::error::RequestError;
use crate::core::event::{Finish, Usage};
use crate::core::id::fresh_id;
use crate::core::model::Served;
use crate::core::output::{FinishedReply, OutputEvent};
use crate::net::stream::{Chunk, Framing};
use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Encoder of one Anthropic message, streamed or whole.
pub struct MessageEncoder {
    id: String,
    model: String,
    /// The block that is open; its index in the message is `closed`.
    open: Option<Block>,
    closed: usize,
    calls: usize,
    finish: Option<Finish>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

impl MessageEncoder {
    /// Encoder of a new message with a fresh id.
    pub fn new(served: &Served) -> MessageEncoder {
        let (id, model) = (fresh_id("msg_"), served.name.clone());
        MessageEncoder {
            id,
            model,
            open: None,
            closed: 0,
            calls: 0,
            finish: None,
        }
    }
    fn message(&self, content: Value, ending: (Value, Value), usage: Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": ending.0, "stop_sequence": ending.1, "usage": usage,
        })
    }
    /// Opens a block, unless one of the same kind is open. Every tool call gets a block of its own.
    fn open(&mut self, block: Block, start: Value, out: &mut Vec<Chunk>) {
        if self.open == Some(block) && block != Block::ToolUse {
            return;
        }
        self.close(out);
        self.open = Some(block);
        let data =
            json!({ "type": "content_block_start", "index": self.closed, "content_block": start });
        out.push(Chunk::Data(Some("content_block_start"), data));
    }
    fn close(&mut self, out: &mut Vec<Chunk>) {
        if self.open.take().is_some() {
            let data = json!({ "type": "content_block_stop", "index": self.closed });
            out.push(Chunk::Data(Some("content_block_stop"), data));
            self.closed += 1;
        }
    }
    fn delta(&self, delta: Value, out: &mut Vec<Chunk>) {
        let data = json!({ "type": "content_block_delta", "index": self.closed, "delta": delta });
        out.push(Chunk::Data(Some("content_block_delta"), data));
    }
}

/// Returns `stop_reason` and `stop_sequence`.
fn ending(finish: Option<&Finish>, calls: usize) -> (Value, Value) {
    match finish {
        Some(Finish::Length) => ("max_tokens".into(), Value::Null),
        Some(Finish::StopText(text)) => ("stop_sequence".into(), text.as_str().into()),
        _ if calls > 0 => ("tool_use".into(), Value::Null),
        _ => ("end_turn".into(), Value::Null),
    }
}

/// Returns the usage object. Prompt tokens found in the prefix cache are counted separately.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.answer,
    })
}

impl ResponseEncoder for MessageEncoder {
    const FRAMING: Framing = Framing::Events;
    fn prompt(&mut self, usage: &Usage, out: &mut Vec<Chunk>) {
        let message = self.message(json!([]), (Value::Null, Value::Null), usage_json(usage));
        let data = json!({ "type": "message_start", "message": message });
        out.push(Chunk::Data(Some("message_start"), data));
    }
    fn output(&mut self, _: usize, event: OutputEvent, out: &mut Vec<Chunk>) {
        match event {
            OutputEvent::Reasoning(text) => {
                self.open(
                    Block::Thinking,
                    json!({ "type": "thinking", "thinking": "", "signature": "" }),
                    out,
                );
                self.delta(json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            OutputEvent::Text(text) => {
                self.open(Block::Text, json!({ "type": "text", "text": "" }), out);
                self.delta(json!({ "type": "text_delta", "text": text }), out);
            }
            OutputEvent::ToolCall(name) => {
                self.calls += 1;
                let start = json!({ "type": "tool_use", "id": fresh_id("toolu_"), "name": name, "input": {} });
                self.open(Block::ToolUse, start, out);
            }
            OutputEvent::ToolArguments(text) => {
                self.delta(
                    json!({ "type": "input_json_delta", "partial_json": text }),
                    out,
                );
            }
            OutputEvent::Finished(finish) => {
                self.close(out);
                self.finish = Some(finish);
            }
            OutputEvent::Progress(..)
            | OutputEvent::Logprobs(_)
            | OutputEvent::PromptLogprobs(_) => {}
        }
    }
    fn end(&mut self, usage: &Usage, out: &mut Vec<Chunk>) {
        let (reason, text) = ending(self.finish.as_ref(), self.calls);
        let delta = json!({ "stop_reason": reason, "stop_sequence": text });
        let data = json!({ "type": "message_delta", "delta": delta, "usage": usage_json(usage) });
        out.push(Chunk::Data(Some("message_delta"), data));
        out.push(Chunk::Data(
            Some("message_stop"),
            json!({ "type": "message_stop" }),
        ));
    }
    fn fail(&mut self, error: &RequestError, out: &mut Vec<Chunk>) {
        out.push(Chunk::Data(Some("error"), to_json(error)));
    }
    fn whole(self, answers: Vec<FinishedReply>, usage: &Usage) -> Response {
        let answer = answers.into_iter().next().unwrap_or_default();
        let ending = ending(answer.finish.as_ref(), answer.calls.len());
        let mut content = Vec::new();
        if !answer.reasoning.is_empty() {
            content
                .push(json!({ "type": "thinking", "thinking": answer.reasoning, "signature": "" }));
        }
        if !answer.text.is_empty() {
            content.push(json!({ "type": "text", "text": answer.text }));
        }
        content.extend(answer.calls.into_iter().map(|call| {
            // Arguments that were cut off by the token limit become an empty object.
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            json!({ "type": "tool_use", "id": fresh_id("toolu_"), "name": call.name, "input": input })
        }));
        Json(self.message(content.into(), ending, usage_json(usage))).into_response()
    }
}
