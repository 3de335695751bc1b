//! `/v1/completions`: text completion.

use super::frame::Frame;
use super::logprobs::CompletionLogprobs;
use super::settings::common_fields;
use super::usage::finish_name;
use crate::api::interface::{Interface, ResponseEncoder};
use crate::core::error::RequestError;
use crate::core::event::{Chosen, Usage};
use crate::core::field_names::FieldNames;
use crate::core::limits::MAX_TOP_LOGPROBS;
use crate::core::model::Served;
use crate::core::output::{FinishedReply, OutputEvent};
use crate::core::request::{GenerateRequest, Input, PromptText};
use crate::net::body::IgnoredFields;
use crate::net::error::to_json;
use crate::net::lenient::{Count, Switch, TokenId, Whole};
use crate::net::stream::{Chunk, Framing};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;

common_fields! { declare_request
    /// Body of `/v1/completions`.
    CompletionRequest {
        /// Name of the model.
        model: Option<String>,
        /// One or more prompts, as text or tokens.
        prompt: RequestPrompt,
        /// Number of alternatives returned with each token's log-probability.
        logprobs: Option<Count>,
        /// Text after the completion (fill-in-the-middle), if the model supports it.
        suffix: Option<String>,
        /// Whether the response begins with the prompt, and with its log-probabilities if
        /// requested.
        echo: Option<Switch>,
        /// Number of completions generated, of which the `n` most probable are returned.
        best_of: Option<Count>,
    }
}

/// One or several prompts, each as text or as tokens.
#[derive(Deserialize, Clone, Debug)]
#[serde(untagged, expecting = "expected a string or an array of tokens")]
pub enum RequestPrompt {
    Text(String),
    Tokens(Vec<TokenId>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<TokenId>>),
    Mixed(Vec<PromptPiece>),
    /// llama.cpp's form of a prompt that may have images, which are not possible here.
    Object(PromptObject),
}

/// A piece of a mixed prompt, in llama.cpp's interface.
#[derive(Deserialize, Clone, Debug)]
#[serde(untagged)]
pub enum PromptPiece {
    Token(TokenId),
    Text(String),
}

/// A prompt as an object.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct PromptObject {
    prompt_string: String,
    #[serde(flatten)]
    _others: IgnoredFields,
}

impl PromptPiece {
    fn text(self) -> PromptText {
        match self {
            PromptPiece::Token(token) => PromptText::Tokens(vec![token.0]),
            PromptPiece::Text(text) => PromptText::Text(text),
        }
    }
}

impl RequestPrompt {
    /// Returns a list of one or more prompts, each of texts or tokens.
    pub fn list(self) -> Vec<PromptText> {
        let tokens = |list: Vec<TokenId>| {
            PromptText::Tokens(list.into_iter().map(|token| token.0).collect())
        };
        match self {
            RequestPrompt::Text(text) => vec![PromptText::Text(text)],
            RequestPrompt::Tokens(list) => vec![tokens(list)],
            RequestPrompt::Texts(texts) => texts.into_iter().map(PromptText::Text).collect(),
            RequestPrompt::TokenLists(lists) => lists.into_iter().map(tokens).collect(),
            RequestPrompt::Mixed(pieces) => {
                let pieces = pieces.into_iter().map(PromptPiece::text).collect();
                vec![PromptText::Mixed(pieces)]
            }
            RequestPrompt::Object(object) => vec![PromptText::Text(object.prompt_string)],
        }
    }
}

/// The interface's default of `max_tokens`.
const DEFAULT_MAX_TOKENS: i64 = 16;

const NAMES: FieldNames = FieldNames {
    input: "prompt",
    tools: "tools",
    tool_choice: "tool_choice",
    limit: "max_tokens",
    choices: "n",
    stop: "stop",
};

/// The endpoint `/v1/completions`.
pub struct Completions;

impl Interface for Completions {
    type Body = CompletionRequest;
    type Encoder = CompletionEncoder;
    fn model(body: &CompletionRequest) -> Option<&str> {
        body.model.as_deref()
    }
    fn request(
        mut body: CompletionRequest,
        served: &Arc<Served>,
    ) -> Result<(GenerateRequest, CompletionEncoder), RequestError> {
        let mut common = body.common();
        // Only an explicit −1 lifts the limit.
        if common.n_predict.is_none() {
            common.max_tokens.get_or_insert(Whole(DEFAULT_MAX_TOKENS));
        }
        let mut prompts = body.prompt.list();
        let echo = body.echo.is_some_and(|echo| echo.0);
        if let Some(suffix) = body.suffix.filter(|suffix| !suffix.is_empty()) {
            infill(served, &mut prompts, &suffix, echo)?;
        }
        if body.logprobs.is_some_and(|top| top.0 > MAX_TOP_LOGPROBS) {
            return Err(RequestError::parameter(
                "logprobs",
                format!("logprobs may be at most {MAX_TOP_LOGPROBS}"),
            ));
        }
        let echoes = if echo {
            prompts.iter().map(|prompt| shown(served, prompt)).collect()
        } else {
            Vec::new()
        };
        let mut request = GenerateRequest::new(&NAMES, Input::Prompts(prompts));
        let telling = common.apply(&mut request)?;
        let logprobs = body.logprobs.map(|top| top.0 as usize);
        request.logprobs = logprobs;
        request.prompt_logprobs = logprobs.filter(|_| echo);
        let told = request.choices;
        if let Some(best) = body.best_of.map(|best| best.0).filter(|&best| best != told) {
            if best < told || request.stream {
                let message = format!(
                    "best_of is {best}; it must be at least n ({told}), and stream must be false"
                );
                return Err(RequestError::parameter("best_of", message));
            }
            request.choices = best;
            request.logprobs = request.logprobs.or(Some(0));
        }
        let encoder = CompletionEncoder {
            served: served.clone(),
            frame: Frame::new(
                "cmpl-",
                "text_completion",
                "text_completion",
                served,
                &telling,
            ),
            logprobs: logprobs.is_some(),
            echoes,
            made: request.choices as usize,
            told: told as usize,
            choices: Vec::new(),
        };
        Ok((request, encoder))
    }
}

/// Replaces prompts by fill-in-the-middle prompts with the given suffix.
fn infill(
    served: &Served,
    prompts: &mut [PromptText],
    suffix: &str,
    echo: bool,
) -> Result<(), RequestError> {
    let refused = |why: &str| {
        Err(RequestError::parameter(
            "suffix",
            format!("suffix is not supported {why}"),
        ))
    };
    let Some(fim) = &served.fim else {
        return refused("with this model: it has no fill-in-the-middle tokens");
    };
    if echo {
        return refused("together with echo");
    }
    for prompt in prompts {
        match prompt {
            PromptText::Text(before) => {
                *prompt = PromptText::Tokens(fim.tokens(&served.tokenizer, before, suffix))
            }
            _ => return refused("with a prompt given as tokens"),
        }
    }
    Ok(())
}

/// Returns a prompt's text, which `echo` puts before the completion.
fn shown(served: &Served, prompt: &PromptText) -> String {
    match prompt {
        PromptText::Text(text) => text.clone(),
        PromptText::Tokens(tokens) => served.tokenizer.decode(tokens, true),
        PromptText::Mixed(pieces) => pieces.iter().map(|piece| shown(served, piece)).collect(),
    }
}

/// One choice of a response or of a stream chunk. Log-probabilities are serialised without a JSON
/// tree.
#[derive(Serialize)]
struct WholeChoice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<CompletionLogprobs<'a>>,
    finish_reason: Option<&'static str>,
}

/// Encoder of a text completion, streamed or whole.
pub struct CompletionEncoder {
    served: Arc<Served>,
    frame: Frame,
    logprobs: bool,
    /// The prompts' texts with `echo`, otherwise empty.
    echoes: Vec<String>,
    /// Completions generated for each prompt, and how many of them are returned.
    made: usize,
    told: usize,
    choices: Vec<Choice>,
}

/// State of one choice of the stream.
#[derive(Default)]
struct Choice {
    begun: bool,
    /// Text that has not been sent yet.
    text: String,
    tokens: Vec<Chosen>,
    /// Characters sent so far.
    offset: usize,
}

impl CompletionEncoder {
    fn piece(
        &self,
        index: usize,
        text: &str,
        tokens: &[Chosen],
        finish_reason: Option<&'static str>,
    ) -> Chunk {
        let offset = self.choices[index].offset;
        let logprobs = self.logprobs.then_some(CompletionLogprobs {
            served: &self.served,
            tokens,
            offset,
        });
        Chunk::Data(
            None,
            self.frame.piece(json!([WholeChoice {
                index,
                text,
                logprobs,
                finish_reason
            }])),
        )
    }
    fn flush(&mut self, index: usize, out: &mut Vec<Chunk>) {
        let choice = &mut self.choices[index];
        let (text, tokens) = (
            std::mem::take(&mut choice.text),
            std::mem::take(&mut choice.tokens),
        );
        if text.is_empty() && tokens.is_empty() {
            return;
        }
        out.push(self.piece(index, &text, &tokens, None));
        let served = &self.served;
        let choice = &mut self.choices[index];
        choice.offset = CompletionLogprobs {
            served,
            tokens: &tokens,
            offset: choice.offset,
        }
        .end();
    }
    /// Returns the completions to send with their prompt's index, ranked by mean log-probability if
    /// some are dropped.
    fn best(&self, answers: Vec<FinishedReply>) -> Vec<(usize, FinishedReply)> {
        let mean = |answer: &FinishedReply| {
            let sum: f32 = answer
                .tokens
                .iter()
                .filter_map(|chosen| chosen.logprob)
                .sum();
            sum / answer.tokens.len().max(1) as f32
        };
        let mut all: Vec<(usize, FinishedReply)> = answers
            .into_iter()
            .enumerate()
            .map(|(at, answer)| (at / self.made, answer))
            .collect();
        if self.told < self.made {
            all.sort_by(|(a, x), (b, y)| a.cmp(b).then(mean(y).total_cmp(&mean(x))));
            let mut at = 0;
            all.retain(|_| {
                at += 1;
                (at - 1) % self.made < self.told
            });
        }
        all
    }
}

impl ResponseEncoder for CompletionEncoder {
    const FRAMING: Framing = Framing::Events;
    fn output(&mut self, index: usize, event: OutputEvent, out: &mut Vec<Chunk>) {
        if index >= self.choices.len() {
            self.choices.resize_with(index + 1, Choice::default);
        }
        let choice = &mut self.choices[index];
        if !std::mem::replace(&mut choice.begun, true) {
            choice
                .text
                .extend(self.echoes.get(index / self.made).cloned());
        }
        match event {
            OutputEvent::Text(text) | OutputEvent::Reasoning(text) => choice.text += &text,
            OutputEvent::PromptLogprobs(tokens) | OutputEvent::Logprobs(tokens) => {
                choice.tokens.extend(tokens)
            }
            OutputEvent::Finished(reason) => {
                self.flush(index, out);
                out.push(self.piece(index, "", &[], Some(finish_name(&reason))));
            }
            OutputEvent::Progress(..)
            | OutputEvent::ToolCall(_)
            | OutputEvent::ToolArguments(_) => {}
        }
    }
    fn together(&mut self, out: &mut Vec<Chunk>) {
        (0..self.choices.len()).for_each(|index| self.flush(index, out));
    }
    fn end(&mut self, usage: &Usage, out: &mut Vec<Chunk>) {
        out.extend(self.frame.end(usage).map(|data| Chunk::Data(None, data)));
        out.push(Chunk::Text("[DONE]"));
    }
    fn fail(&mut self, error: &RequestError, out: &mut Vec<Chunk>) {
        out.extend([Chunk::Data(None, to_json(error)), Chunk::Text("[DONE]")]);
    }
    fn whole(self, answers: Vec<FinishedReply>, usage: &Usage) -> Response {
        let told: Vec<(String, Vec<Chosen>, Option<&'static str>)> = self
            .best(answers)
            .into_iter()
            .map(|(prompt, answer)| {
                let echo = self.echoes.get(prompt).cloned().unwrap_or_default();
                let tokens = [answer.prompt, answer.tokens].concat();
                (
                    echo + &answer.text,
                    tokens,
                    answer.finish.as_ref().map(finish_name),
                )
            })
            .collect();
        let choices = told
            .iter()
            .enumerate()
            .map(|(index, (text, tokens, finish_reason))| WholeChoice {
                index,
                text,
                logprobs: self.logprobs.then_some(CompletionLogprobs {
                    served: &self.served,
                    tokens,
                    offset: 0,
                }),
                finish_reason: *finish_reason,
            });
        self.frame.whole(choices, usage)
    }
}
