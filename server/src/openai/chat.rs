//! `/v1/chat/completions`.

use super::events::{self, Teller};
use super::frame::Frame;
use super::logprobs::ChatLogprobs;
use super::messages::{RequestMessage, convert};
use super::settings::request;
use super::tools::{ResponseFormat, Tool, ToolChoice, Wishes};
use super::{finish_name, fresh_id, rate};
use crate::app::App;
use crate::body::Asked;
use crate::constraint::Constraint;
use crate::error::ApiError;
use crate::event::{Chosen, Delta, Finish, Usage};
use crate::grammar::Form;
use crate::model::{Served, now};
use crate::prompt::{self, Prompt};
use crate::reply::{Part, Reply, Schemas};
use crate::settings::Settings;
use crate::{app, body, budget, grammar, schema};
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

request! {
    /// A request.
    ChatRequest {
        /// The conversation.
        messages: Vec<RequestMessage>,
        /// What newer clients call `max_tokens`.
        max_completion_tokens: Option<u64>,
        /// Tools that may be called.
        tools: Option<Vec<Tool>>,
        /// Whether they may or must.
        tool_choice: Option<ToolChoice>,
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

/// Most alternatives to a token.
const TOP: u64 = 20;

/// A request, checked.
struct Ready {
    settings: Settings,
    prompt: Prompt,
    constraint: Option<Constraint>,
    schemas: Option<Schemas>,
    forced: bool,
    several: bool,
    logprobs: Option<usize>,
}

impl ChatRequest {
    fn check(&self, app: &App) -> Result<Ready, ApiError> {
        let mut settings = self.raw().check(app)?;
        if let Some(limit) = self.max_completion_tokens {
            if limit == 0 {
                let message = "max_completion_tokens is 0; it must be at least 1";
                return Err(ApiError::parameter("max_completion_tokens", message));
            }
            settings.limit = Some(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        if self.functions.is_some() || self.function_call.is_some() {
            let message = "functions and function_call are of an older interface: use tools and tool_choice";
            return Err(ApiError::parameter("functions", message));
        }
        let logprobs = match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (_, Some(top)) if top > TOP => {
                return Err(ApiError::parameter("top_logprobs", format!("top_logprobs may be at most {TOP}")));
            }
            (false, Some(top)) if top > 0 => {
                return Err(ApiError::parameter("top_logprobs", "top_logprobs is for logprobs only: set that to true"));
            }
            (false, _) => None,
            (true, top) => Some(top.unwrap_or(0) as usize),
        };
        let several = self.parallel_tool_calls.unwrap_or(true);
        let wishes =
            Wishes::new(self.tools.as_deref(), self.tool_choice.as_ref(), self.response_format.as_ref(), several)?;
        let served = &app.served;
        let thinking = self.thinking()?;
        let prompt = prompt::chat(served, convert(&self.messages)?, &wishes.to_json(), thinking)?;
        budget::check(&settings, served, prompt.tokens.len(), logprobs, app.config.answer)?;
        let constraint = wishes.form().map(|(form, parameter)| {
            let compiled = constraint(served, &form, prompt.thinking);
            compiled.map_err(|why| ApiError::parameter(parameter, format!("this schema is not possible: {why}")))
        });
        let constraint = constraint.transpose()?;
        let (schemas, forced) = (wishes.schemas(), wishes.forced());
        Ok(Ready { settings, prompt, constraint, schemas, forced, several, logprobs })
    }
    /// Is reasoning switched on or off?
    fn thinking(&self) -> Result<Option<bool>, ApiError> {
        let kwargs = self.chat_template_kwargs.as_ref();
        if let Some(name) = kwargs.and_then(|kwargs| kwargs.others.keys().next()) {
            let message = format!("chat_template_kwargs can only be enable_thinking here, not {name}");
            return Err(ApiError::parameter("chat_template_kwargs", message));
        }
        let effort = self.reasoning_effort.as_deref();
        if let Some(effort) = effort.filter(|effort| !EFFORTS.contains(effort)) {
            let message = format!("reasoning_effort is `{effort}`; it must be one of {}", EFFORTS.join(", "));
            return Err(ApiError::parameter("reasoning_effort", message));
        }
        let switch = kwargs.and_then(|kwargs| kwargs.enable_thinking);
        Ok(switch.or((effort == Some("none")).then_some(false)))
    }
}

/// A form, compiled.
fn constraint(served: &Served, form: &Form, thinking: bool) -> Result<Constraint, String> {
    let compile = |form: &Form, thinking: bool| {
        let grammar = grammar::grammar(form, prompt::style(served), &served.tokenizer)?;
        served.grammars.compile(grammar, thinking)
    };
    let compiled = compile(form, thinking)?;
    // Whether anything can follow is seen where a schema begins, and arguments begin in the middle of a call.
    for parameters in form.calls.iter().filter_map(|call| call.parameters).filter(|it| schema::refers(it)) {
        compile(&Form { schema: Some(parameters), ..Form::default() }, false)?;
    }
    Ok(compiled)
}

/// Answers one.
pub async fn complete(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, ApiError> {
    let (read, client, when) = asked.json(&app).await?;
    let ready = app::prepare(&app, client, move |app| body::parse::<ChatRequest>(&read)?.check(app)).await?;
    let Ready { settings, prompt, constraint, schemas, forced, several, logprobs } = ready;
    let reply = || Reply::new(prompt.thinking, schemas.clone(), forced);
    let telling = Telling {
        served: app.served.clone(),
        frame: Frame {
            id: fresh_id("chatcmpl-"),
            whole: "chat.completion",
            piece: "chat.completion.chunk",
            created: now(),
            model: app.served.name.clone(),
            include_usage: settings.include_usage,
        },
        timings: settings.timings,
        logprobs: logprobs.is_some(),
        answers: (0..settings.choices).map(|_| Answer::new(reply(), several, !settings.stream)).collect(),
    };
    let stream = settings.stream;
    let mut events = app.submit(client, when, settings, prompt.tokens, constraint, true, logprobs)?;
    if stream {
        return Ok(events::respond(events, telling));
    }
    let mut telling = telling;
    let mut ends: Vec<(usize, Finish)> = Vec::new();
    let answers = &mut telling.answers;
    let usage = events::collect(
        &mut events,
        |delta| {
            let answer = &mut answers[delta.choice];
            answer.tokens.extend(delta.tokens);
            answer.push(&delta.text);
        },
        |choice, reason| ends.push((choice, reason)),
    )
    .await?;
    Ok(telling.whole(&ends, &usage))
}

/// One answer, as far as it has come.
struct Answer {
    reply: Reply,
    begun: bool,
    several: bool,
    /// Will it be told at once? Then its text is kept.
    whole: bool,
    content: String,
    reasoning: String,
    calls: Vec<Call>,
    tokens: Vec<Chosen>,
}

struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Answer {
    fn new(reply: Reply, several: bool, whole: bool) -> Answer {
        let (content, reasoning) = Default::default();
        Answer { reply, begun: false, several, whole, content, reasoning, calls: Vec::new(), tokens: Vec::new() }
    }
    /// More text; the deltas it makes.
    fn push(&mut self, text: &str) -> Vec<Value> {
        let parts = self.reply.push(text);
        parts.into_iter().filter_map(|part| self.take(part)).collect()
    }
    fn finish(&mut self, reason: Finish) -> Vec<Value> {
        let parts = self.reply.finish(reason == Finish::Length);
        parts.into_iter().filter_map(|part| self.take(part)).collect()
    }
    fn take(&mut self, part: Part) -> Option<Value> {
        match part {
            Part::Reasoning(text) if self.whole => {
                self.reasoning += &text;
                None
            }
            Part::Content(text) if self.whole => {
                self.content += &text;
                None
            }
            Part::Reasoning(text) => Some(json!({ "reasoning_content": text })),
            Part::Content(text) => Some(json!({ "content": text })),
            Part::Call(name) => {
                let index = self.calls.len();
                self.calls.push(Call { id: fresh_id("call_"), name, arguments: String::new() });
                let call = self.calls.last().filter(|_| index == 0 || self.several)?;
                let function = json!({ "name": call.name, "arguments": "" });
                let call = json!({ "index": index, "id": call.id, "type": "function", "function": function });
                Some(json!({ "tool_calls": [call] }))
            }
            Part::Arguments(text) => {
                let index = self.calls.len().checked_sub(1)?;
                if self.whole {
                    self.calls[index].arguments += &text;
                    return None;
                }
                let more = json!({ "index": index, "function": { "arguments": text } });
                (index == 0 || self.several).then(|| json!({ "tool_calls": [more] }))
            }
        }
    }
    fn finish_name(&self, reason: Finish) -> &'static str {
        if reason == Finish::Stop && !self.calls.is_empty() { "tool_calls" } else { finish_name(reason) }
    }
    /// The message, whole.
    fn message(&mut self) -> Value {
        let calling = self.reply.is_forced() || !self.calls.is_empty();
        let content =
            if self.content.is_empty() && calling { Value::Null } else { std::mem::take(&mut self.content).into() };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = std::mem::take(&mut self.reasoning).into();
        }
        if !self.calls.is_empty() {
            let told = if self.several { usize::MAX } else { 1 };
            let calls = self.calls.iter_mut().take(told).map(|call| {
                let function = json!({ "name": call.name, "arguments": std::mem::take(&mut call.arguments) });
                json!({ "id": call.id, "type": "function", "function": function })
            });
            message["tool_calls"] = calls.collect();
        }
        message
    }
}

/// How a chat completion is told.
struct Telling {
    served: Arc<Served>,
    frame: Frame,
    timings: bool,
    logprobs: bool,
    answers: Vec<Answer>,
}

impl Telling {
    fn choice(&self, index: usize, delta: Value, logprobs: Value, finish: Value) -> Value {
        self.frame.piece(json!([{ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish }]))
    }
    /// Says who speaks, once.
    fn begin(&mut self, choice: usize, chunks: &mut VecDeque<Value>) {
        if !std::mem::replace(&mut self.answers[choice].begun, true) {
            let content = if self.answers[choice].reply.is_forced() { Value::Null } else { "".into() };
            let role = json!({ "role": "assistant", "content": content });
            chunks.push_back(self.choice(choice, role, Value::Null, Value::Null));
        }
    }
    /// All of it at once.
    fn whole(&mut self, ends: &[(usize, Finish)], usage: &Usage) -> Response {
        let end = |&(index, reason): &(usize, Finish)| {
            let answer = &mut self.answers[index];
            answer.finish(reason);
            (index, answer.message(), answer.finish_name(reason))
        };
        let ended: Vec<_> = ends.iter().map(end).collect();
        let choices = ended.into_iter().map(|(index, message, finish_reason)| {
            let tokens = &self.answers[index].tokens;
            let logprobs = self.logprobs.then_some(ChatLogprobs { served: &self.served, tokens });
            WholeChoice { index, message, logprobs, finish_reason }
        });
        self.frame.whole(choices, usage)
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

impl Teller for Telling {
    fn delta(&mut self, delta: Delta, chunks: &mut VecDeque<Value>) {
        self.begin(delta.choice, chunks);
        let probabilities = self.logprobs.then_some(ChatLogprobs { served: &self.served, tokens: &delta.tokens });
        let mut probabilities = json!(probabilities);
        let mut deltas = self.answers[delta.choice].push(&delta.text);
        if deltas.is_empty() && !delta.tokens.is_empty() {
            deltas.push(json!({}));
        }
        for part in deltas {
            let mut chunk = self.choice(delta.choice, part, probabilities.take(), Value::Null);
            if self.timings {
                let speed = rate(delta.so_far, delta.time);
                chunk["timings"] = json!({ "predicted_n": delta.so_far, "predicted_per_second": speed });
            }
            chunks.push_back(chunk);
        }
    }
    fn finish(&mut self, choice: usize, reason: Finish, chunks: &mut VecDeque<Value>) {
        self.begin(choice, chunks);
        for part in self.answers[choice].finish(reason) {
            chunks.push_back(self.choice(choice, part, Value::Null, Value::Null));
        }
        let reason = self.answers[choice].finish_name(reason);
        chunks.push_back(self.choice(choice, json!({}), Value::Null, reason.into()));
    }
    fn end(&mut self, usage: &Usage, chunks: &mut VecDeque<Value>) {
        chunks.extend(self.frame.end(usage));
    }
}
