//! `/api/generate`.

use super::encoder::{OllamaEncoder, OllamaEndpoint};
use super::keep_alive;
use super::options::{Options, ignored_fields, names, request, thinking};
use crate::api::date::date;
use crate::api::interface::Interface;
use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::model::{Served, now};
use crate::core::models::policy::KeepAlive;
use crate::core::request::{GenerateRequest, Input, PromptText};
use crate::net::lenient::{Switch, null_default};
use gristmill_llm::chat::Message;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Body of `/api/generate`.
#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
pub struct GenerateBody {
    model: String,
    #[serde(default, deserialize_with = "null_default")]
    prompt: String,
    suffix: Option<String>,
    system: Option<String>,
    raw: Option<Switch>,
    format: Option<Value>,
    options: Option<Options>,
    stream: Option<Switch>,
    think: Option<Value>,
    keep_alive: Option<Value>,
    batch_invariant: Option<Switch>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

const NAMES: FieldNames = names("prompt");

/// The endpoint `/api/generate`.
pub struct Generate;

impl Interface for Generate {
    type Body = GenerateBody;
    type Encoder = OllamaEncoder;
    fn model(body: &GenerateBody) -> Option<&str> {
        Some(&body.model)
    }
    fn request(
        body: GenerateBody,
        served: &Arc<Served>,
    ) -> Result<(GenerateRequest, OllamaEncoder), RequestError> {
        let ignored = ignored_fields(&body.others)?;
        let thinking = thinking(body.think)?;
        let suffix = body.suffix.filter(|suffix| !suffix.is_empty());
        let input = match (suffix, &served.fim) {
            (Some(suffix), Some(fim)) => {
                let tokens = fim.tokens(&served.tokenizer, &body.prompt, &suffix);
                Input::Prompts(vec![PromptText::Tokens(tokens)])
            }
            (Some(_), None) => {
                let message =
                    "suffix is not supported with this model: it has no fill-in-the-middle tokens";
                return Err(RequestError::parameter("suffix", message));
            }
            (None, _) if body.raw == Some(Switch(true)) => {
                Input::Prompts(vec![PromptText::Text(body.prompt)])
            }
            (None, _) => {
                let system = body
                    .system
                    .filter(|text| !text.is_empty())
                    .map(Message::system);
                let messages = system
                    .into_iter()
                    .chain([Message::user(body.prompt)])
                    .collect();
                Input::Conversation { messages, thinking }
            }
        };
        let mut request = request(&NAMES, input, body.options, body.format, body.stream)?;
        request.ignored.extend(ignored);
        request.sampling.batch_invariant = body
            .batch_invariant
            .map(|switch| switch.0)
            .or(request.sampling.batch_invariant);
        Ok((
            request,
            OllamaEncoder::new(OllamaEndpoint::Generate, served),
        ))
    }
    fn keep_alive(body: &GenerateBody) -> Result<Option<KeepAlive>, RequestError> {
        keep_alive::parse(body.keep_alive.as_ref())
    }
    fn load_response(body: &GenerateBody, served: &Served) -> Option<Value> {
        let reason = keep_alive::reason(body.keep_alive.as_ref());
        body.prompt.is_empty().then(|| {
            json!({ "model": served.name, "created_at": date(now()), "response": "", "done": true, "done_reason": reason })
        })
    }
}
