//! `/v1/chat/completions`.

use super::frame::Frame;
use super::logprobs::ChatLogprobs;
use super::messages::{RequestMessage, convert};
use super::settings::{Telling, common_fields, tokens};
use super::tools::ResponseFormat;
use super::usage::{finish_name, rate};
use crate::api::interface::{Interface, ResponseEncoder};
use crate::api::tool_choice::{Function, RequestTool, RequestToolChoice, functions, tools};
use crate::core::error::RequestError;
use crate::core::event::{Chosen, Finish, Usage};
use crate::core::field_names::FieldNames;
use crate::core::id::fresh_id;
use crate::core::limits::MAX_TOP_LOGPROBS;
use crate::core::model::Served;
use crate::core::output::{FinishedReply, OutputEvent};
use crate::core::request::{GenerateRequest, Input, ReasoningLimit, Thinking};
use crate::core::tools::ToolChoice;
use crate::net::error::to_json;
use crate::net::lenient::{Count, Switch, Whole};
use crate::net::stream::{Chunk, Framing};
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

common_fields! { declare_request
    /// Body of `/v1/chat/completions`.
    ChatRequest {
        /// Name of the model.
        model: Option<String>,
        /// Messages of the conversation.
        messages: Vec<RequestMessage>,
        /// The newer name of `max_tokens`.
        max_completion_tokens: Option<Whole>,
        /// Tools that the model may call.
        tools: Option<Vec<RequestTool>>,
        /// Whether the model may, must or must not call tools.
        tool_choice: Option<RequestToolChoice>,
        /// Whether one answer may have several calls.
        parallel_tool_calls: Option<Switch>,
        /// Format that constrains the answer: a JSON schema or JSON object.
        response_format: Option<ResponseFormat>,
        /// Whether to return the log-probability of every token.
        logprobs: Option<Switch>,
        /// Number of alternatives returned with each token.
        top_logprobs: Option<Count>,
        /// "none" switches reasoning off, if the model supports that.
        reasoning_effort: Option<String>,
        /// Maximum tokens of the reasoning; -1 for no limit.
        reasoning_budget: Option<Whole>,
        /// The same number under names of llama.cpp.
        thinking_budget_tokens: Option<Whole>,
        reasoning_budget_tokens: Option<Whole>,
        /// Message before the end of reasoning that is cut off at its budget.
        reasoning_budget_message: Option<String>,
        /// Variables for the chat template.
        chat_template_kwargs: Option<Map<String, Value>>,
        /// The predecessor of `tools`; an answer then has a `function_call`.
        functions: Option<Vec<Function>>,
        /// The predecessor of `tool_choice`.
        function_call: Option<RequestToolChoice>,
    }
}

/// Maximum text of `chat_template_kwargs` in bytes.
const MAX_TEMPLATE_KWARGS: usize = 64 << 10;

/// Values of `reasoning_effort`. "none" switches reasoning off; the other values matter only to
/// some models.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// Values of `reasoning_effort` that leave it to the model.
const NO_EFFORTS: &[&str] = &["", "auto", "default"];

const NAMES: FieldNames = FieldNames {
    input: "messages",
    tools: "tools",
    tool_choice: "tool_choice",
    limit: "max_tokens",
    choices: "n",
    stop: "stop",
};

/// The endpoint `/v1/chat/completions`.
pub struct Chat;

impl Interface for Chat {
    type Body = ChatRequest;
    type Encoder = ChatEncoder;
    fn model(body: &ChatRequest) -> Option<&str> {
        body.model.as_deref()
    }
    fn request(
        mut body: ChatRequest,
        served: &Arc<Served>,
    ) -> Result<(GenerateRequest, ChatEncoder), RequestError> {
        let common = body.common();
        let older = body
            .functions
            .as_ref()
            .is_some_and(|functions| !functions.is_empty());
        let logprobs = body.logprobs()?;
        let thinking = body.thinking()?;
        let input = Input::Conversation {
            messages: convert(&body.messages)?,
            thinking,
        };
        let mut request = GenerateRequest::new(&NAMES, input);
        let form = body
            .response_format
            .map(ResponseFormat::output_format)
            .transpose()?
            .flatten();
        request.form = form.map(|form| ("response_format", form));
        let telling = common.apply(&mut request)?;
        let newer = body
            .max_completion_tokens
            .map(|most| tokens("max_completion_tokens", most.0))
            .transpose()?;
        for (name, limit) in [
            ("max_tokens", request.limit),
            ("max_completion_tokens", newer.flatten()),
        ] {
            if limit == Some(0) {
                return Err(RequestError::parameter(
                    name,
                    format!("{name} is 0; it must be at least 1"),
                ));
            }
        }
        if let Some(limit) = newer {
            request.limit = limit;
        }
        request.tools = tools(body.tools.unwrap_or_default(), &mut request.ignored)?;
        request
            .tools
            .extend(functions(body.functions.unwrap_or_default())?);
        let choice = body.tool_choice.or(body.function_call);
        request.tool_choice = choice.map_or(ToolChoice::Auto, ToolChoice::from);
        request.several_calls = !older && body.parallel_tool_calls.is_none_or(|several| several.0);
        request.logprobs = logprobs;
        let forced = request.tool_choice.is_forced();
        let encoder = ChatEncoder {
            served: served.clone(),
            frame: Frame::new(
                "chatcmpl-",
                "chat.completion",
                "chat.completion.chunk",
                served,
                &telling,
            ),
            telling,
            logprobs: logprobs.is_some(),
            forced,
            older,
            choices: Vec::new(),
        };
        Ok((request, encoder))
    }
}

impl ChatRequest {
    /// Returns the number of alternatives per token, or `None` without log-probabilities.
    fn logprobs(&self) -> Result<Option<usize>, RequestError> {
        match (self.logprobs.is_some_and(|told| told.0), self.top_logprobs) {
            (_, Some(top)) if top.0 > MAX_TOP_LOGPROBS => Err(RequestError::parameter(
                "top_logprobs",
                format!("top_logprobs may be at most {MAX_TOP_LOGPROBS}"),
            )),
            (false, Some(top)) if top.0 > 0 => Err(RequestError::parameter(
                "top_logprobs",
                "top_logprobs is for logprobs only: set that to true",
            )),
            (false, _) => Ok(None),
            (true, top) => Ok(Some(top.map_or(0, |top| top.0) as usize)),
        }
    }
    /// Returns the reasoning settings of the request.
    fn thinking(&self) -> Result<Thinking, RequestError> {
        let kwargs = self.chat_template_kwargs.clone().unwrap_or_default();
        let bytes = json!(kwargs).to_string().len();
        if bytes > MAX_TEMPLATE_KWARGS {
            let message =
                format!("chat_template_kwargs have {bytes} bytes, more than {MAX_TEMPLATE_KWARGS}");
            return Err(RequestError::parameter("chat_template_kwargs", message));
        }
        let effort = self
            .reasoning_effort
            .as_deref()
            .map(str::to_ascii_lowercase);
        let effort = effort
            .as_deref()
            .filter(|effort| !NO_EFFORTS.contains(effort));
        if let Some(effort) = effort.filter(|effort| !EFFORTS.contains(effort)) {
            let message = format!(
                "reasoning_effort is `{effort}`; it must be one of {}",
                EFFORTS.join(", ")
            );
            return Err(RequestError::parameter("reasoning_effort", message));
        }
        let thinking = Thinking::of_effort(effort);
        // `thinking` is DeepSeek's name of the variable.
        let mut switches = ["enable_thinking", "thinking"].into_iter();
        let switch = switches.find_map(|name| kwargs.get(name)?.as_bool());
        let budgets = [
            ("reasoning_budget", self.reasoning_budget),
            ("thinking_budget_tokens", self.thinking_budget_tokens),
            ("reasoning_budget_tokens", self.reasoning_budget_tokens),
        ];
        let mut budgets = budgets
            .into_iter()
            .filter_map(|(name, tokens)| Some(ReasoningLimit::new(name, tokens?.0)));
        Ok(Thinking {
            switch: switch.or(thinking.switch),
            variables: kwargs,
            budget: budgets.next().transpose()?,
            message: self.reasoning_budget_message.clone(),
            ..thinking
        })
    }
}

/// Encoder of a chat completion, streamed or whole.
pub struct ChatEncoder {
    served: Arc<Served>,
    frame: Frame,
    telling: Telling,
    logprobs: bool,
    /// Whether a tool call is required, so that an answer may have no content.
    forced: bool,
    /// Whether a call is told as `function_call`, the predecessor of `tool_calls`.
    older: bool,
    choices: Vec<Choice>,
}

/// State of one choice of the stream.
#[derive(Default)]
struct Choice {
    begun: bool,
    /// Number of tool calls that have begun.
    calls: usize,
    /// Log-probabilities that have not been sent yet.
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
    /// Sends the first chunk of a choice, which has the role.
    fn begin(&mut self, index: usize, out: &mut Vec<Chunk>) {
        if !std::mem::replace(&mut self.choice(index).begun, true) {
            let content = if self.forced { Value::Null } else { "".into() };
            let role = json!({ "role": "assistant", "content": content });
            out.push(Chunk::Data(
                None,
                self.chunk(index, role, Value::Null, Value::Null),
            ));
        }
    }
    fn delta(&mut self, index: usize, delta: Value, out: &mut Vec<Chunk>) {
        let tokens = std::mem::take(&mut self.choice(index).tokens);
        let (so_far, time) = self.choice(index).progress;
        let told = self.logprobs && !tokens.is_empty();
        let logprobs = json!(told.then_some(ChatLogprobs {
            served: &self.served,
            tokens: &tokens
        }));
        let mut chunk = self.chunk(index, delta, logprobs, Value::Null);
        if self.telling.timings {
            chunk["timings"] =
                json!({ "predicted_n": so_far, "predicted_per_second": rate(so_far, time) });
        }
        out.push(Chunk::Data(None, chunk));
    }
    fn call(&mut self, index: usize, name: Option<String>, arguments: &str, out: &mut Vec<Chunk>) {
        let choice = self.choice(index);
        choice.calls += usize::from(name.is_some());
        let Some(number) = choice.calls.checked_sub(1) else {
            return;
        };
        if self.older {
            let mut call = json!({ "arguments": arguments });
            if let Some(name) = name {
                call["name"] = name.into();
            }
            return self.delta(index, json!({ "function_call": call }), out);
        }
        let mut call = json!({ "index": number, "function": { "arguments": arguments } });
        if let Some(name) = name {
            call["id"] = fresh_id("call_").into();
            call["type"] = "function".into();
            call["function"]["name"] = name.into();
        }
        self.delta(index, json!({ "tool_calls": [call] }), out);
    }
    /// Returns OpenAI's `finish_reason` of a choice with so many calls.
    fn ending(&self, reason: &Finish, calls: usize) -> &'static str {
        match finish_name(reason) {
            "stop" if calls > 0 && self.older => "function_call",
            "stop" if calls > 0 => "tool_calls",
            name => name,
        }
    }
    /// Returns the complete message.
    fn message(&self, answer: FinishedReply) -> Value {
        let calling = self.forced || !answer.calls.is_empty();
        let content = if answer.text.is_empty() && calling {
            Value::Null
        } else {
            answer.text.into()
        };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !answer.reasoning.is_empty() {
            message["reasoning_content"] = answer.reasoning.into();
        }
        if self.older {
            let call = answer.calls.into_iter().next();
            if let Some(call) = call {
                message["function_call"] =
                    json!({ "name": call.name, "arguments": call.arguments });
            }
        } else if !answer.calls.is_empty() {
            let calls = answer.calls.into_iter().map(|call| {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "id": fresh_id("call_"), "type": "function", "function": function })
            });
            message["tool_calls"] = calls.collect();
        }
        message
    }
}

/// One choice of a response that is not streamed.
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
            OutputEvent::Reasoning(text) => {
                self.delta(index, json!({ "reasoning_content": text }), out)
            }
            OutputEvent::Text(text) => self.delta(index, json!({ "content": text }), out),
            OutputEvent::ToolCall(name) => self.call(index, Some(name), "", out),
            OutputEvent::ToolArguments(text) => self.call(index, None, &text, out),
            OutputEvent::Finished(reason) => {
                self.together(out);
                let calls = self.choice(index).calls;
                let reason = self.ending(&reason, calls);
                let chunk = self.chunk(index, json!({}), Value::Null, reason.into());
                out.push(Chunk::Data(None, chunk));
            }
        }
    }
    /// Sends the log-probabilities of tokens that have produced no text yet.
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
        let tokens: Vec<Vec<Chosen>> = answers
            .iter_mut()
            .map(|answer| std::mem::take(&mut answer.tokens))
            .collect();
        let choices =
            answers
                .into_iter()
                .zip(&tokens)
                .enumerate()
                .map(|(index, (answer, tokens))| WholeChoice {
                    index,
                    logprobs: self.logprobs.then_some(ChatLogprobs {
                        served: &self.served,
                        tokens,
                    }),
                    finish_reason: answer
                        .finish
                        .as_ref()
                        .map_or("stop", |reason| self.ending(reason, answer.calls.len())),
                    message: self.message(answer),
                });
        self.frame.whole(choices, usage)
    }
}
