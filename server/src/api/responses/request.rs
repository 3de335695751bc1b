//! Requests to `/v1/responses`.

use super::encoder::{EchoedSettings, ResponsesEncoder};
use super::items::{RequestInput, convert};
use crate::api::fields::KnownFields;
use crate::api::interface::Interface;
use crate::api::tool_choice::{RequestTool, RequestToolChoice, schema_value, tools};
use crate::core::adapters::AdapterChoice;
use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::model::Served;
use crate::core::request::{GenerateRequest, Input, ReasoningLimit, Thinking};
use crate::core::sampling::{SamplingOptions, whole};
use crate::core::tools::ToolChoice;
use crate::net::body::IgnoredFields;
use crate::net::lenient::{Count, Number, Switch};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Body of `/v1/responses`.
#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
pub struct ResponseRequest {
    model: Option<String>,
    input: RequestInput,
    instructions: Option<String>,
    max_output_tokens: Option<Count>,
    stream: Option<Switch>,
    temperature: Option<Number>,
    top_p: Option<Number>,
    batch_invariant: Option<Switch>,
    lora: Option<Vec<AdapterChoice>>,
    tools: Option<Vec<Echoed<RequestTool>>>,
    tool_choice: Option<Echoed<RequestToolChoice>>,
    parallel_tool_calls: Option<Switch>,
    text: Option<Echoed<Text>>,
    reasoning: Option<Echoed<Reasoning>>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// A value of the request, and its JSON, which the response repeats.
#[derive(Debug)]
struct Echoed<T> {
    json: Value,
    value: T,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Echoed<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Echoed<T>, D::Error> {
        let json = Value::deserialize(from)?;
        let value = T::deserialize(&json).map_err(D::Error::custom)?;
        Ok(Echoed { json, value })
    }
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct Text {
    format: Option<Format>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct Format {
    #[serde(rename = "type")]
    kind: FormatKind,
    schema: Option<Value>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct Reasoning {
    effort: Option<String>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

const NAMES: FieldNames = FieldNames {
    input: "input",
    tools: "tools",
    tool_choice: "tool_choice",
    limit: "max_output_tokens",
    choices: "n",
    stop: "stop",
};

/// Parameters that are accepted and ignored, such as labels, storage, caching and billing hints.
const SILENT: &[&str] = &[
    "user",
    "client_metadata",
    "safety_identifier",
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "include",
    "truncation",
    "stream_options",
    "max_tool_calls",
    "context_management",
];

/// Fields of the request.
const FIELDS: KnownFields = KnownFields {
    at: "",
    declared: &[
        "model",
        "input",
        "instructions",
        "max_output_tokens",
        "stream",
        "temperature",
        "top_p",
        "batch_invariant",
        "lora",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "text",
        "reasoning",
    ],
    silent: SILENT,
    refused: REFUSED,
};

/// Parameters that are refused, with the reason.
const REFUSED: &[(&str, &str)] = &[
    (
        "previous_response_id",
        "responses are not stored: send the conversation so far as input",
    ),
    (
        "conversation",
        "conversations are not stored: send the conversation so far as input",
    ),
    (
        "background",
        "responses are not generated in the background: set stream to true",
    ),
    (
        "prompt",
        "prompts are not stored: send the text as instructions and input",
    ),
    (
        "top_logprobs",
        "/v1/chat/completions and /v1/completions return log-probabilities",
    ),
];

/// The endpoint `/v1/responses`.
pub struct Responses;

impl Interface for Responses {
    type Body = ResponseRequest;
    type Encoder = ResponsesEncoder;
    fn model(body: &ResponseRequest) -> Option<&str> {
        body.model.as_deref()
    }
    fn request(
        body: ResponseRequest,
        served: &Arc<Served>,
    ) -> Result<(GenerateRequest, ResponsesEncoder), RequestError> {
        let mut ignored = FIELDS.ignored(&body.others)?;
        let about = body.echoed();
        let limit = body.max_output_tokens.map(|limit| limit.0);
        if let Some(limit) = limit {
            whole("max_output_tokens", limit, 1, u64::MAX)?;
        }
        let effort = body
            .reasoning
            .as_ref()
            .and_then(|reasoning| reasoning.value.effort.as_deref());
        // A template with efforts of its own knows what they mean.
        let has_efforts = served.template.mentions("reasoning_effort");
        let budget = ReasoningLimit::for_effort(effort).filter(|_| !has_efforts);
        let thinking = Thinking {
            budget,
            ..Thinking::of_effort(effort)
        };
        let form = body
            .text
            .and_then(|text| text.value.format)
            .map(Format::output_format)
            .transpose()?
            .flatten();
        let listed = body.tools.unwrap_or_default().into_iter();
        let tools = tools(listed.map(|tool| tool.value).collect(), &mut ignored)?;
        let choice = body.tool_choice.map(|choice| choice.value.into());
        let input = Input::Conversation {
            messages: convert(body.instructions, body.input, &mut ignored)?,
            thinking,
        };
        let mut request = GenerateRequest::new(&NAMES, input);
        request.limit = limit;
        request.ignored = ignored;
        request.stream = body.stream.is_some_and(|stream| stream.0);
        let ResponseRequest {
            temperature,
            top_p,
            batch_invariant,
            lora,
            ..
        } = body;
        request.sampling = SamplingOptions {
            temperature: temperature.map(|number| number.0),
            top_p: top_p.map(|number| number.0),
            batch_invariant: batch_invariant.map(|switch| switch.0),
            lora,
            ..SamplingOptions::default()
        };
        request.tools = tools;
        request.tool_choice = choice.unwrap_or(ToolChoice::Auto);
        request.several_calls = body.parallel_tool_calls.is_none_or(|several| several.0);
        request.form = form.map(|form| ("text.format", form));
        Ok((request, ResponsesEncoder::new(served, about)))
    }
}

impl ResponseRequest {
    /// Returns the settings that the response repeats, as they were sent.
    fn echoed(&self) -> EchoedSettings {
        let sent = |name: &str| self.others.get(name).cloned().unwrap_or_default();
        let or = |value: Value, default: Value| if value.is_null() { default } else { value };
        let json = |value: Option<&Value>| value.cloned().unwrap_or_default();
        let tools = self.tools.iter().flatten();
        let mut reasoning = json!({ "effort": null, "summary": null });
        let mut text = json!({ "format": { "type": "text" } });
        for (told, sent) in [
            (
                &mut reasoning,
                self.reasoning.as_ref().map(|sent| &sent.json),
            ),
            (&mut text, self.text.as_ref().map(|sent| &sent.json)),
        ] {
            let fields = sent.and_then(Value::as_object).into_iter().flatten();
            for (name, value) in fields.filter(|(_, value)| !value.is_null()) {
                told[name] = value.clone();
            }
        }
        EchoedSettings {
            instructions: self.instructions.clone(),
            limit: self.max_output_tokens.map(|limit| limit.0),
            temperature: self.temperature.map(|number| number.0),
            top_p: self.top_p.map(|number| number.0),
            tools: tools.map(|tool| tool.json.clone()).collect(),
            tool_choice: or(
                json(self.tool_choice.as_ref().map(|choice| &choice.json)),
                "auto".into(),
            ),
            several: self.parallel_tool_calls.is_none_or(|several| several.0),
            text,
            reasoning,
            metadata: or(sent("metadata"), json!({})),
            truncation: or(sent("truncation"), "disabled".into()),
            user: sent("user"),
        }
    }
}

impl Format {
    fn output_format(self) -> Result<Option<OutputFormat>, RequestError> {
        match (self.kind, self.schema.map(schema_value)) {
            (FormatKind::Text, _) => Ok(None),
            (FormatKind::JsonObject, _) => {
                Ok(Some(OutputFormat::Schema(json!({ "type": "object" }))))
            }
            (FormatKind::JsonSchema, Some(schema)) if schema.is_object() || schema.is_boolean() => {
                Ok(Some(OutputFormat::Schema(schema)))
            }
            (FormatKind::JsonSchema, _) => {
                let message = "a format of type json_schema needs a schema, an object";
                Err(RequestError::parameter("text.format.schema", message))
            }
        }
    }
}
