//! `/v1/chat/completions`.

use super::frame::Frame;
use super::logprobs::ChatLogprobs;
use super::messages::{RequestMessage, convert};
use super::settings::{Telling, common_fields, tokens};
use super::tools::{RequestTool, RequestToolChoice, ResponseFormat, tools};
use super::usage::{finish_name, rate};
use crate::api::interface::{Interface, ResponseEncoder};
use crate::core::error::RequestError;
use crate::core::event::{Chosen, Finish, Usage};
use crate::core::field_names::FieldNames;
use crate::core::id::fresh_id;
use crate::core::limits::MAX_TOP_LOGPROBS;
use crate::core::model::Served;
use crate::core::output::{FinishedReply, OutputEvent};
use crate::core::request::{GenerateRequest, Input, Thinking};
use crate::core::tools::ToolChoice;
use crate::net::error::to_json;
use crate::net::stream::{Chunk, Framing};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

common_fields! { declare_request
    /// A request.
    ChatRequest {
        /// Which model.
        model: Option<String>,
        /// The conversation.
        messages: Vec<RequestMessage>,
        /// What newer clients call `max_tokens`.
        max_completion_tokens: Option<i64>,
        /// Tools that may be called.
        tools: Option<Vec<RequestTool>>,
        /// Whether they may or must.
        tool_choice: Option<RequestToolChoice>,
        /// Several calls in one answer?
        parallel_tool_calls: Option<bool>,
        /// What form the answer must have.
        response_format: Option<ResponseFormat>,
        /// Tell the probability of every token?
        logprobs: Option<bool>,
        /// And of so many others?
        top_logprobs: Option<u64>,
        /// "none" switches reasoning off, where the model can.
        reasoning_effort: Option<String>,
        /// Switches of the template.
        chat_template_kwargs: Option<TemplateSettings>,
        /// The predecessor of `tools`.
        functions: Option<Value>,
        /// The predecessor of `tool_choice`.
        function_call: Option<Value>,
    }
}

/// Switches of the template.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct TemplateSettings {
    enable_thinking: Option<bool>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// What `reasoning_effort` may be: how much is a matter of the model, whether at all can be asked for.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh"];

const NAMES: FieldNames = FieldNames {
    input: "messages",
    tools: "tools",
    tool_choice: "tool_choice",
    limit: "max_tokens",
    choices: "n",
    stop: "stop",
};

/// Chat completions.
pub struct Chat;

impl Interface for Chat {
    type Body = ChatRequest;
    type Encoder = ChatEncoder;
    fn model(body: &ChatRequest) -> Option<&str> {
        body.model.as_deref()
    }
    fn request(mut body: ChatRequest, served: &Arc<Served>) -> Result<(GenerateRequest, ChatEncoder), RequestError> {
        let common = body.common();
        let logprobs = body.logprobs()?;
        let thinking = body.thinking()?;
        if body.functions.is_some() || body.function_call.is_some() {
            let message = "functions and function_call are of an older interface: use tools and tool_choice";
            return Err(RequestError::parameter("functions", message));
        }
        let input = Input::Conversation { messages: convert(&body.messages)?, thinking };
        let mut request = GenerateRequest::new(&NAMES, input);
        let form = body.response_format.map(ResponseFormat::output_format).transpose()?.flatten();
        request.form = form.map(|form| ("response_format", form));
        let telling = common.apply(&mut request)?;
        let newer = body.max_completion_tokens.map(|most| tokens("max_completion_tokens", most)).transpose()?;
        for (name, limit) in [("max_tokens", request.limit), ("max_completion_tokens", newer.flatten())] {
            if limit == Some(0) {
                return Err(RequestError::parameter(name, format!("{name} is 0; it must be at least 1")));
            }
        }
        if let Some(limit) = newer {
            request.limit = limit;
        }
        request.tools = tools(body.tools.unwrap_or_default())?;
        request.tool_choice = body.tool_choice.map_or(ToolChoice::Auto, ToolChoice::from);
        request.several_calls = body.parallel_tool_calls.unwrap_or(true);
        request.logprobs = logprobs;
        let forced = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        let encoder = ChatEncoder {
            served: served.clone(),
            frame: Frame::new("chatcmpl-", "chat.completion", "chat.completion.chunk", served, &telling),
            telling,
            logprobs: logprobs.is_some(),
            forced,
            choices: Vec::new(),
        };
        Ok((request, encoder))
    }
}

impl ChatRequest {
    /// Alternatives whose probabilities are asked for, if any are.
    fn logprobs(&self) -> Result<Option<usize>, RequestError> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (_, Some(top)) if top > MAX_TOP_LOGPROBS => {
                Err(RequestError::parameter("top_logprobs", format!("top_logprobs may be at most {MAX_TOP_LOGPROBS}")))
            }
            (false, Some(top)) if top > 0 => {
                Err(RequestError::parameter("top_logprobs", "top_logprobs is for logprobs only: set that to true"))
            }
            (false, _) => Ok(None),
            (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        }
    }
    /// How much the model is to reason.
    fn thinking(&self) -> Result<Thinking, RequestError> {
        let kwargs = self.chat_template_kwargs.as_ref();
        if let Some(name) = kwargs.and_then(|kwargs| kwargs.others.keys().next()) {
            let message = format!("chat_template_kwargs can only be enable_thinking here, not {name}");
            return Err(RequestError::parameter("chat_template_kwargs", message));
        }
        let effort = self.reasoning_effort.as_deref();
        if let Some(effort) = effort.filter(|effort| !EFFORTS.contains(effort)) {
            let message = format!("reasoning_effort is `{effort}`; it must be one of {}", EFFORTS.join(", "));
            return Err(RequestError::parameter("reasoning_effort", message));
        }
        let thinking = Thinking::of_effort(effort);
        let switch = kwargs.and_then(|kwargs| kwargs.enable_thinking);
        Ok(Thinking { switch: switch.or(thinking.switch), ..thinking })
    }
}

/// How a chat completion is told.
pub struct ChatEncoder {
    served: Arc<Served>,
    frame: Frame,
    telling: Telling,
    logprobs: bool,
    /// Can answers consist of nothing but calls?
    forced: bool,
    choices: Vec<Choice>,
}

/// One answer, as far as it has been told.
#[derive(Default)]
struct Choice {
    begun: bool,
    /// Calls that have begun.
    calls: usize,
    /// Probabilities that were not told yet.
    tokens: Vec<Chosen>,
    progress: (usize, Duration),
}

impl ChatEncoder {
    fn choice(&mut self, index: usize) -> &mut Choice {
        if index >= self.choices.len() {
            self.choices.resize_with(index + 1, Choice::default);
        }
        &mut self.choices[index]
    }
    fn chunk(&self, index: usize, delta: Value, logprobs: Value, finish: Value) -> Value {
        self.frame.piece(json!([{ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish }]))
    }
    /// Says who speaks, once.
    fn begin(&mut self, index: usize, out: &mut Vec<Chunk>) {
        if !std::mem::replace(&mut self.choice(index).begun, true) {
            let content = if self.forced { Value::Null } else { "".into() };
            let role = json!({ "role": "assistant", "content": content });
            out.push(Chunk::Data(None, self.chunk(index, role, Value::Null, Value::Null)));
        }
    }
    fn delta(&mut self, index: usize, delta: Value, out: &mut Vec<Chunk>) {
        let tokens = std::mem::take(&mut self.choice(index).tokens);
        let (so_far, time) = self.choice(index).progress;
        let told = self.logprobs && !tokens.is_empty();
        let logprobs = json!(told.then_some(ChatLogprobs { served: &self.served, tokens: &tokens }));
        let mut chunk = self.chunk(index, delta, logprobs, Value::Null);
        if self.telling.timings {
            chunk["timings"] = json!({ "predicted_n": so_far, "predicted_per_second": rate(so_far, time) });
        }
        out.push(Chunk::Data(None, chunk));
    }
    fn call(&mut self, index: usize, name: Option<String>, arguments: &str, out: &mut Vec<Chunk>) {
        let choice = self.choice(index);
        choice.calls += usize::from(name.is_some());
        let Some(number) = choice.calls.checked_sub(1) else { return };
        let mut call = json!({ "index": number, "function": { "arguments": arguments } });
        if let Some(name) = name {
            call["id"] = fresh_id("call_").into();
            call["type"] = "function".into();
            call["function"]["name"] = name.into();
        }
        self.delta(index, json!({ "tool_calls": [call] }), out);
    }
    /// The message, whole.
    fn message(&self, answer: FinishedReply) -> Value {
        let calling = self.forced || !answer.calls.is_empty();
        let content = if answer.text.is_empty() && calling { Value::Null } else { answer.text.into() };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !answer.reasoning.is_empty() {
            message["reasoning_content"] = answer.reasoning.into();
        }
        if !answer.calls.is_empty() {
            let calls = answer.calls.into_iter().map(|call| {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "id": fresh_id("call_"), "type": "function", "function": function })
            });
            message["tool_calls"] = calls.collect();
        }
        message
    }
}

fn ending(reason: &Finish, calls: usize) -> &'static str {
    match finish_name(reason) {
        "stop" if calls > 0 => "tool_calls",
        name => name,
    }
}

/// What a whole answer has of one choice.
#[derive(Serialize)]
struct WholeChoice<'a> {
    index: usize,
    message: Value,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: &'static str,
}

impl ResponseEncoder for ChatEncoder {
    const FRAMING: Framing = Framing::Events;
    fn output(&mut self, index: usize, event: OutputEvent, out: &mut Vec<Chunk>) {
        self.begin(index, out);
        match event {
            OutputEvent::Progress(tokens, time) => self.choice(index).progress = (tokens, time),
            OutputEvent::PromptLogprobs(_) => {}
            OutputEvent::Logprobs(tokens) => self.choice(index).tokens.extend(tokens),
            OutputEvent::Reasoning(text) => self.delta(index, json!({ "reasoning_content": text }), out),
            OutputEvent::Text(text) => self.delta(index, json!({ "content": text }), out),
            OutputEvent::ToolCall(name) => self.call(index, Some(name), "", out),
            OutputEvent::ToolArguments(text) => self.call(index, None, &text, out),
            OutputEvent::Finished(reason) => {
                self.together(out);
                let reason = ending(&reason, self.choice(index).calls);
                let chunk = self.chunk(index, json!({}), Value::Null, reason.into());
                out.push(Chunk::Data(None, chunk));
            }
        }
    }
    /// Probabilities of tokens that made no text yet are told all the same.
    fn together(&mut self, out: &mut Vec<Chunk>) {
        for index in 0..self.choices.len() {
            if !self.choices[index].tokens.is_empty() {
                self.delta(index, json!({}), out);
            }
        }
    }
    fn end(&mut self, usage: &Usage, out: &mut Vec<Chunk>) {
        out.extend(self.frame.end(usage).map(|data| Chunk::Data(None, data)));
        out.push(Chunk::Text("[DONE]"));
    }
    fn fail(&mut self, error: &RequestError, out: &mut Vec<Chunk>) {
        out.extend([Chunk::Data(None, to_json(error)), Chunk::Text("[DONE]")]);
    }
    fn whole(self, answers: Vec<FinishedReply>, usage: &Usage) -> Response {
        let mut answers = answers;
        let tokens: Vec<Vec<Chosen>> = answers.iter_mut().map(|answer| std::mem::take(&mut answer.tokens)).collect();
        let choices = answers.into_iter().zip(&tokens).enumerate().map(|(index, (answer, tokens))| WholeChoice {
            index,
            logprobs: self.logprobs.then_some(ChatLogprobs { served: &self.served, tokens }),
            finish_reason: answer.finish.as_ref().map_or("stop", |reason| ending(reason, answer.calls.len())),
            message: self.message(answer),
        });
        self.frame.whole(choices, usage)
    }
}
