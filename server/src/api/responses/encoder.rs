//! Encodes a response as items, one after the other, each with its own stream events.

use crate::api::interface::ResponseEncoder;
use crate::core::error::RequestError;
use crate::core::event::{Finish, Usage};
use crate::core::id::fresh_id;
use crate::core::model::{Served, now};
use crate::core::output::{FinishedReply, OutputEvent};
use crate::net::error::to_json;
use crate::net::stream::{Chunk, Framing};
use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Settings of the request that the response object repeats.
pub struct EchoedSettings {
    pub instructions: Option<String>,
    pub limit: Option<u64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub tools: Vec<Value>,
    pub tool_choice: Value,
    pub several: bool,
    pub text: Value,
    pub reasoning: Value,
    pub metadata: Value,
    pub truncation: Value,
    pub user: Value,
}

/// Encoder of one response, streamed or whole.
pub struct ResponsesEncoder {
    id: String,
    created: u64,
    model: String,
    about: EchoedSettings,
    /// Sequence number of the next event.
    number: u64,
    done: Vec<Value>,
    open: Option<Open>,
    finish: Option<Finish>,
}

/// The item that is being generated.
struct Open {
    kind: Kind,
    id: String,
    /// Identifier and function name, for a function call.
    call: (String, String),
    /// Text so far, or arguments of a call.
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call,
}

impl Open {
    fn new(kind: Kind, name: String) -> Open {
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call => "fc_",
        };
        Open {
            kind,
            id: fresh_id(prefix),
            call: (fresh_id("call_"), name),
            text: String::new(),
        }
    }
    /// Returns the item as JSON; with status `in_progress` its content is empty.
    fn item(&self, status: &str) -> Value {
        let part = || {
            if status == "in_progress" {
                json!([])
            } else {
                json!([self.part(&self.text)])
            }
        };
        match self.kind {
            Kind::Reasoning => {
                json!({ "id": self.id, "type": "reasoning", "status": status, "summary": [], "content": part() })
            }
            Kind::Message => {
                json!({ "id": self.id, "type": "message", "status": status, "role": "assistant", "content": part() })
            }
            Kind::Call => {
                let (call_id, name) = &self.call;
                json!({
                    "id": self.id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                    "arguments": self.text,
                })
            }
        }
    }
    fn part(&self, text: &str) -> Value {
        match self.kind {
            Kind::Reasoning => json!({ "type": "reasoning_text", "text": text }),
            _ => json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
        }
    }
}

impl ResponsesEncoder {
    /// Encoder of a new response with a fresh id.
    pub fn new(served: &Served, about: EchoedSettings) -> ResponsesEncoder {
        ResponsesEncoder {
            id: fresh_id("resp_"),
            created: now(),
            model: served.name.clone(),
            about,
            number: 0,
            done: Vec::new(),
            open: None,
            finish: None,
        }
    }
    /// Returns the response object in its current state; `usage` is `None` until it is known.
    fn response(&self, status: &str, error: Value, usage: Option<&Usage>) -> Value {
        let incomplete = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let EchoedSettings {
            instructions,
            limit,
            temperature,
            top_p,
            tools,
            tool_choice,
            several,
            text,
            reasoning,
            metadata,
            truncation,
            user,
        } = &self.about;
        json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": error,
            "incomplete_details": incomplete, "instructions": instructions, "max_output_tokens": limit,
            "model": self.model, "output": self.done, "parallel_tool_calls": several, "previous_response_id": null,
            "reasoning": reasoning, "store": false, "temperature": temperature,
            "text": text, "tool_choice": tool_choice, "tools": tools, "top_p": top_p,
            "truncation": truncation, "usage": usage.map(usage_json), "user": user, "metadata": metadata,
        })
    }
    fn event(&mut self, name: &'static str, mut data: Value, out: &mut Vec<Chunk>) {
        data["type"] = name.into();
        data["sequence_number"] = self.number.into();
        self.number += 1;
        out.push(Chunk::Data(Some(name), data));
    }
    /// Sends an event about the open item's content part.
    fn part_event(&mut self, name: &'static str, mut data: Value, out: &mut Vec<Chunk>) {
        let Some(open) = &self.open else { return };
        data["item_id"] = open.id.as_str().into();
        data["output_index"] = self.done.len().into();
        if open.kind != Kind::Call {
            data["content_index"] = 0.into();
        }
        self.event(name, data, out);
    }
    /// Opens an item, unless one of the same kind is open. Every call gets an item of its own.
    fn open(&mut self, kind: Kind, name: String, out: &mut Vec<Chunk>) {
        if kind != Kind::Call && self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        self.close("completed", out);
        let open = Open::new(kind, name);
        let (item, part) = (open.item("in_progress"), open.part(""));
        self.open = Some(open);
        let index = self.done.len();
        self.event(
            "response.output_item.added",
            json!({ "output_index": index, "item": item }),
            out,
        );
        if kind != Kind::Call {
            self.part_event("response.content_part.added", json!({ "part": part }), out);
        }
    }
    fn more(&mut self, text: &str, out: &mut Vec<Chunk>) {
        let Some(open) = &mut self.open else { return };
        open.text += text;
        let (name, data) = match open.kind {
            Kind::Reasoning => ("response.reasoning_text.delta", json!({ "delta": text })),
            Kind::Message => (
                "response.output_text.delta",
                json!({ "delta": text, "logprobs": [] }),
            ),
            Kind::Call => (
                "response.function_call_arguments.delta",
                json!({ "delta": text }),
            ),
        };
        self.part_event(name, data, out);
    }
    fn close(&mut self, status: &str, out: &mut Vec<Chunk>) {
        let Some(open) = &self.open else { return };
        let (kind, text, part) = (open.kind, open.text.clone(), open.part(&open.text));
        let item = open.item(status);
        let (name, data) = match kind {
            Kind::Reasoning => ("response.reasoning_text.done", json!({ "text": text })),
            Kind::Message => (
                "response.output_text.done",
                json!({ "text": text, "logprobs": [] }),
            ),
            Kind::Call => (
                "response.function_call_arguments.done",
                json!({ "arguments": text, "name": open.call.1 }),
            ),
        };
        self.part_event(name, data, out);
        if kind != Kind::Call {
            self.part_event("response.content_part.done", json!({ "part": part }), out);
        }
        let data = json!({ "output_index": self.done.len(), "item": item });
        self.event("response.output_item.done", data, out);
        self.done.push(item);
        self.open = None;
    }
    fn status(&self) -> &'static str {
        if self.finish == Some(Finish::Length) {
            "incomplete"
        } else {
            "completed"
        }
    }
}

fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": { "cached_tokens": usage.cached },
        "output_tokens": usage.answer,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning },
        "total_tokens": usage.prompt + usage.answer,
    })
}

impl ResponseEncoder for ResponsesEncoder {
    const FRAMING: Framing = Framing::Events;
    fn begin(&mut self, out: &mut Vec<Chunk>) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress", Value::Null, None);
            self.event(name, json!({ "response": response }), out);
        }
    }
    fn output(&mut self, _: usize, event: OutputEvent, out: &mut Vec<Chunk>) {
        match event {
            OutputEvent::Reasoning(text) => {
                self.open(Kind::Reasoning, String::new(), out);
                self.more(&text, out);
            }
            OutputEvent::Text(text) => {
                self.open(Kind::Message, String::new(), out);
                self.more(&text, out);
            }
            OutputEvent::ToolCall(name) => self.open(Kind::Call, name, out),
            OutputEvent::ToolArguments(text) => self.more(&text, out),
            OutputEvent::Finished(finish) => {
                self.finish = Some(finish);
                self.close(self.status(), out);
            }
            OutputEvent::Progress(..)
            | OutputEvent::Logprobs(_)
            | OutputEvent::PromptLogprobs(_) => {}
        }
    }
    fn end(&mut self, usage: &Usage, out: &mut Vec<Chunk>) {
        let status = self.status();
        let name = if status == "incomplete" {
            "response.incomplete"
        } else {
            "response.completed"
        };
        let response = self.response(status, Value::Null, Some(usage));
        self.event(name, json!({ "response": response }), out);
    }
    fn fail(&mut self, error: &RequestError, out: &mut Vec<Chunk>) {
        let told = to_json(error)["error"].take();
        let error = json!({ "code": told["code"].as_str().unwrap_or("server_error"), "message": told["message"] });
        let response = self.response("failed", error, None);
        self.event("response.failed", json!({ "response": response }), out);
    }
    fn whole(mut self, answers: Vec<FinishedReply>, usage: &Usage) -> Response {
        let answer = answers.into_iter().next().unwrap_or_default();
        let mut unread = Vec::new();
        let calls = answer.calls.into_iter().flat_map(|call| {
            [
                OutputEvent::ToolCall(call.name),
                OutputEvent::ToolArguments(call.arguments),
            ]
        });
        let parts = [
            OutputEvent::Reasoning(answer.reasoning),
            OutputEvent::Text(answer.text),
        ];
        let told = parts
            .into_iter()
            .filter(|part| !matches!(part, OutputEvent::Reasoning(t) | OutputEvent::Text(t) if t.is_empty()));
        let finish = answer.finish.map(OutputEvent::Finished);
        for event in told.chain(calls).chain(finish) {
            self.output(0, event, &mut unread);
        }
        let response = self.response(self.status(), Value::Null, Some(usage));
        Json(response).into_response()
    }
}
