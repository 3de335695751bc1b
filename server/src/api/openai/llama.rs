//! llama.cpp's own completion endpoints: `/completion`, `/completions` and `/infill`.
//!
//! Responses also have the `choices` of OpenAI's completions, as OpenAI's clients send their
//! requests to `/completions` if their base URL lacks `/v1`.

use super::completions::RequestPrompt;
use super::settings::common_fields;
use super::usage::{finish_name, timings_json, usage_json};
use crate::api::interface::{Interface, ResponseEncoder};
use crate::core::error::RequestError;
use crate::core::event::{Finish, Usage};
use crate::core::field_names::FieldNames;
use crate::core::id::fresh_id;
use crate::core::model::Served;
use crate::core::output::{FinishedReply, OutputEvent};
use crate::core::request::{GenerateRequest, Input, PromptText};
use crate::net::body::IgnoredFields;
use crate::net::error::to_json;
use crate::net::lenient::null_default;
use crate::net::stream::{Chunk, Framing};
use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

common_fields! { declare_request
    /// Body of `/completion`, `/completions` and `/infill`.
    LlamaRequest {
        /// Name of the model.
        model: Option<String>,
        /// One or more prompts; of `/infill`, the text directly before the completion.
        prompt: Option<RequestPrompt>,
        /// Text before the completion, of `/infill`.
        input_prefix: Option<String>,
        /// Text after the completion, of `/infill`.
        input_suffix: Option<String>,
        /// Other files, of `/infill`.
        input_extra: Option<Vec<ExtraFile>>,
    }
}

/// Another file of the repository, which the completion may refer to.
#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
pub struct ExtraFile {
    #[serde(default, deserialize_with = "null_default")]
    filename: String,
    #[serde(default, deserialize_with = "null_default")]
    text: String,
    #[serde(flatten)]
    _others: IgnoredFields,
}

const NAMES: FieldNames = FieldNames {
    input: "prompt",
    tools: "tools",
    tool_choice: "tool_choice",
    limit: "n_predict",
    choices: "n",
    stop: "stop",
};

/// The endpoints `/completion`, `/completions` and `/infill`.
pub struct LlamaCompletions;

impl Interface for LlamaCompletions {
    type Body = LlamaRequest;
    type Encoder = LlamaEncoder;
    fn model(body: &LlamaRequest) -> Option<&str> {
        body.model.as_deref()
    }
    fn request(
        mut body: LlamaRequest,
        served: &Arc<Served>,
    ) -> Result<(GenerateRequest, LlamaEncoder), RequestError> {
        let common = body.common();
        let limit = common.n_predict.or(common.max_tokens);
        let limit = limit.and_then(|most| usize::try_from(most.0).ok());
        let prompts = body.prompts(served, limit.unwrap_or(usize::MAX))?;
        let mut request = GenerateRequest::new(&NAMES, Input::Prompts(prompts));
        if body.input_extra.is_some_and(|files| !files.is_empty()) {
            request.ignored.push("input_extra".into());
        }
        common.apply(&mut request)?;
        let encoder = LlamaEncoder {
            id: fresh_id("cmpl-"),
            model: served.name.clone(),
            ends: Vec::new(),
        };
        Ok((request, encoder))
    }
}

impl LlamaRequest {
    /// Returns the prompts, which fill in the middle if there is a prefix or a suffix. `limit` is
    /// the maximum of tokens that are generated.
    fn prompts(&mut self, served: &Served, limit: usize) -> Result<Vec<PromptText>, RequestError> {
        let (prefix, suffix) = (self.input_prefix.take(), self.input_suffix.take());
        let prompts = self.prompt.take().map(RequestPrompt::list);
        if prefix.is_none() && suffix.is_none() {
            return prompts.ok_or_else(|| RequestError::missing("prompt"));
        }
        let Some(fim) = &served.fim else {
            let message = "input_suffix is not possible with this model: it has no tokens to fill in the middle";
            return Err(RequestError::parameter("input_suffix", message));
        };
        let mut before = prefix.unwrap_or_default();
        match prompts.as_deref() {
            None | Some([]) => {}
            Some([PromptText::Text(text)]) => before += text,
            Some(_) => {
                let message = "the prompt of an infill must be one text";
                return Err(RequestError::parameter("prompt", message));
            }
        }
        let suffix = suffix.unwrap_or_default();
        let files = self.input_extra.take().unwrap_or_default();
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|file| (file.filename.as_str(), file.text.as_str()))
            .collect();
        // A long completion may take up to a quarter of the context from the other files.
        let most = served
            .context
            .saturating_sub(1 + limit.min(served.context / 4));
        let tokens = fim.tokens_with_files(&served.tokenizer, &files, [&before, &suffix], most);
        Ok(vec![PromptText::Tokens(tokens)])
    }
}

/// Encoder of llama.cpp's completions, streamed or whole.
pub struct LlamaEncoder {
    id: String,
    model: String,
    /// Reason why each choice of a stream ended.
    ends: Vec<(usize, Finish)>,
}

impl LlamaEncoder {
    /// Returns the fields of a stream chunk or of a whole answer.
    fn piece(&self, index: usize, text: &str, finish: Option<&Finish>) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "model": self.model, "index": index,
            "content": text, "tokens": [], "id_slot": -1, "stop": false,
            "choices": [{
                "index": index, "text": text, "logprobs": null, "finish_reason": finish.map(finish_name),
            }],
        })
    }
    /// Returns the last chunk of a choice, or its whole answer.
    fn last(&self, index: usize, text: &str, finish: &Finish, usage: &Usage) -> Value {
        let (kind, word) = match finish {
            Finish::Stop => ("eos", ""),
            Finish::StopText(text) => ("word", text.as_str()),
            Finish::Length => ("limit", ""),
        };
        let mut last = self.piece(index, text, Some(finish));
        let fields = json!({
            "stop": true, "stop_type": kind, "stopping_word": word, "truncated": false,
            "stopped_eos": kind == "eos", "stopped_word": kind == "word", "stopped_limit": kind == "limit",
            "tokens_predicted": usage.answer, "tokens_evaluated": usage.prompt,
            "tokens_cached": usage.cached, "timings": timings_json(usage), "usage": usage_json(usage),
        });
        if let (Value::Object(last), Value::Object(fields)) = (&mut last, fields) {
            last.extend(fields);
        }
        last
    }
}

impl ResponseEncoder for LlamaEncoder {
    const FRAMING: Framing = Framing::Events;
    fn output(&mut self, index: usize, event: OutputEvent, out: &mut Vec<Chunk>) {
        match event {
            OutputEvent::Text(text) | OutputEvent::Reasoning(text) => {
                out.push(Chunk::Data(None, self.piece(index, &text, None)));
            }
            OutputEvent::Finished(finish) => self.ends.push((index, finish)),
            OutputEvent::Progress(..)
            | OutputEvent::PromptLogprobs(_)
            | OutputEvent::Logprobs(_)
            | OutputEvent::ToolCall(_)
            | OutputEvent::ToolArguments(_) => {}
        }
    }
    fn end(&mut self, usage: &Usage, out: &mut Vec<Chunk>) {
        for (index, finish) in &self.ends {
            out.push(Chunk::Data(None, self.last(*index, "", finish, usage)));
        }
    }
    fn fail(&mut self, error: &RequestError, out: &mut Vec<Chunk>) {
        out.push(Chunk::Data(None, to_json(error)));
    }
    fn whole(self, answers: Vec<FinishedReply>, usage: &Usage) -> Response {
        let whole = |(index, answer): (usize, &FinishedReply)| {
            let finish = answer.finish.as_ref().unwrap_or(&Finish::Stop);
            self.last(index, &answer.text, finish, usage)
        };
        let mut all: Vec<Value> = answers.iter().enumerate().map(whole).collect();
        match all.len() {
            1 => Json(all.swap_remove(0)).into_response(),
            _ => Json(all).into_response(),
        }
    }
}
