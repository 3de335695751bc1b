//! Encodes responses as Ollama's JSON lines; the last line has the usage.

use super::error::to_json;
use crate::api::date::date;
use crate::api::interface::ResponseEncoder;
use crate::core::error::RequestError;
use crate::core::event::{Finish, Usage};
use crate::core::model::{Served, now};
use crate::core::output::{FinishedReply, OutputEvent, ToolCall};
use crate::net::stream::{Chunk, Framing};
use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The endpoint that determines the shape of a response line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OllamaEndpoint {
    /// `/api/chat`: lines have a `message`.
    Chat,
    /// `/api/generate`: lines have a `response`.
    Generate,
}

/// Encoder of one Ollama response, streamed or whole.
pub struct OllamaEncoder {
    kind: OllamaEndpoint,
    model: String,
    begun: Instant,
    /// The tool call that is still being generated; it is sent when it is complete.
    call: Option<ToolCall>,
    finish: Option<Finish>,
}

/// Converts a duration to nanoseconds, saturating.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl OllamaEncoder {
    /// Encoder for the given endpoint and model.
    pub fn new(kind: OllamaEndpoint, served: &Served) -> OllamaEncoder {
        OllamaEncoder {
            kind,
            model: served.name.clone(),
            begun: Instant::now(),
            call: None,
            finish: None,
        }
    }
    fn line(&self, text: &str, thinking: &str, calls: Vec<Value>) -> Value {
        let mut line = json!({ "model": self.model, "created_at": date(now()), "done": false });
        let said = match self.kind {
            OllamaEndpoint::Chat => {
                line["message"] = json!({ "role": "assistant", "content": text });
                &mut line["message"]
            }
            OllamaEndpoint::Generate => {
                line["response"] = text.into();
                &mut line
            }
        };
        if !thinking.is_empty() {
            said["thinking"] = thinking.into();
        }
        if !calls.is_empty() {
            said["tool_calls"] = calls.into();
        }
        line
    }
    fn last(&self, mut line: Value, usage: &Usage) -> Value {
        let told = [
            ("done", true.into()),
            (
                "done_reason",
                if self.finish == Some(Finish::Length) {
                    "length"
                } else {
                    "stop"
                }
                .into(),
            ),
            ("total_duration", nanoseconds(self.begun.elapsed()).into()),
            ("load_duration", 0.into()),
            ("prompt_eval_count", usage.prompt.into()),
            (
                "prompt_eval_duration",
                nanoseconds(usage.prompt_time).into(),
            ),
            ("eval_count", usage.answer.into()),
            ("eval_duration", nanoseconds(usage.answer_time).into()),
        ];
        told.into_iter()
            .for_each(|(name, value): (&str, Value)| line[name] = value);
        line
    }
    fn tell_call(&mut self, out: &mut Vec<Chunk>) {
        if let Some(call) = self.call.take() {
            out.push(Chunk::Data(None, self.line("", "", vec![call_json(&call)])));
        }
    }
}

fn call_json(call: &ToolCall) -> Value {
    // Arguments that were cut off by the token limit become an empty object.
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({ "function": { "name": call.name, "arguments": arguments } })
}

impl ResponseEncoder for OllamaEncoder {
    const FRAMING: Framing = Framing::Lines;
    fn output(&mut self, _: usize, event: OutputEvent, out: &mut Vec<Chunk>) {
        match event {
            OutputEvent::ToolArguments(text) => {
                if let Some(call) = &mut self.call {
                    call.arguments += &text;
                }
            }
            OutputEvent::ToolCall(name) => {
                self.tell_call(out);
                self.call = Some(ToolCall {
                    name,
                    arguments: String::new(),
                });
            }
            OutputEvent::Text(text) => {
                self.tell_call(out);
                out.push(Chunk::Data(None, self.line(&text, "", Vec::new())));
            }
            OutputEvent::Reasoning(text) => {
                self.tell_call(out);
                out.push(Chunk::Data(None, self.line("", &text, Vec::new())));
            }
            OutputEvent::Finished(finish) => {
                self.tell_call(out);
                self.finish = Some(finish);
            }
            OutputEvent::Progress(..)
            | OutputEvent::Logprobs(_)
            | OutputEvent::PromptLogprobs(_) => {}
        }
    }
    fn end(&mut self, usage: &Usage, out: &mut Vec<Chunk>) {
        out.push(Chunk::Data(
            None,
            self.last(self.line("", "", Vec::new()), usage),
        ));
    }
    fn fail(&mut self, error: &RequestError, out: &mut Vec<Chunk>) {
        out.push(Chunk::Data(None, to_json(error)));
    }
    fn whole(mut self, answers: Vec<FinishedReply>, usage: &Usage) -> Response {
        let answer = answers.into_iter().next().unwrap_or_default();
        let calls = answer.calls.iter().map(call_json).collect();
        let line = self.line(&answer.text, &answer.reasoning, calls);
        self.finish = answer.finish;
        Json(self.last(line, usage)).into_response()
    }
}
