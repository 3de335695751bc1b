//! `/api/chat`.

use super::encoder::{OllamaEncoder, OllamaEndpoint};
use super::keep_alive;
use super::messages::{OllamaMessage, convert};
use super::options::{Options, ignored_fields, names, request, thinking};
use crate::api::date::date;
use crate::api::interface::Interface;
use crate::api::tool_choice::{RequestTool, tools};
use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::model::{Served, now};
use crate::core::models::policy::KeepAlive;
use crate::core::request::{GenerateRequest, Input};
use crate::net::lenient::{Switch, null_default};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Body of `/api/chat`.
#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
pub struct ChatRequest {
    model: String,
    #[serde(default, deserialize_with = "null_default")]
    messages: Vec<OllamaMessage>,
    tools: Option<Vec<RequestTool>>,
    format: Option<Value>,
    options: Option<Options>,
    stream: Option<Switch>,
    think: Option<Value>,
    keep_alive: Option<Value>,
    batch_invariant: Option<Switch>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

const NAMES: FieldNames = names("messages");

/// The endpoint `/api/chat`.
pub struct OllamaChat;

impl Interface for OllamaChat {
    type Body = ChatRequest;
    type Encoder = OllamaEncoder;
    fn model(body: &ChatRequest) -> Option<&str> {
        Some(&body.model)
    }
    fn request(
        body: ChatRequest,
        served: &Arc<Served>,
    ) -> Result<(GenerateRequest, OllamaEncoder), RequestError> {
        let ignored = ignored_fields(&body.others)?;
        let input = Input::Conversation {
            messages: convert(body.messages)?,
            thinking: thinking(body.think)?,
        };
        let mut request = request(&NAMES, input, body.options, body.format, body.stream)?;
        request.ignored.extend(ignored);
        request.tools = tools(body.tools.unwrap_or_default(), &mut request.ignored)?;
        request.sampling.batch_invariant = body
            .batch_invariant
            .map(|switch| switch.0)
            .or(request.sampling.batch_invariant);
        Ok((request, OllamaEncoder::new(OllamaEndpoint::Chat, served)))
    }
    fn keep_alive(body: &ChatRequest) -> Result<Option<KeepAlive>, RequestError> {
        keep_alive::parse(body.keep_alive.as_ref())
    }
    fn load_response(body: &ChatRequest, served: &Served) -> Option<Value> {
        let message = json!({ "role": "assistant", "content": "" });
        let reason = keep_alive::reason(body.keep_alive.as_ref());
        body.messages.is_empty().then(|| {
            json!({
                "model": served.name, "created_at": date(now()), "message": message, "done": true, "done_reason": reason,
            })
        })
    }
}
