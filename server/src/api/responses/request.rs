//! Requests to `/v1/responses`.

use super::encoder::{EchoedSettings, ResponsesEncoder};
use super::items::{RequestInput, convert};
use crate::api::fields::KnownFields;
use crate::api::interface::Interface;
use crate::api::tool_choice::{RequestTool, RequestToolChoice, tools};
use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::model::Served;
use crate::core::request::{GenerateRequest, Input, Thinking};
use crate::core::sampling::{SamplingOptions, whole};
use crate::core::tools::{Tool, ToolChoice};
use crate::net::body::IgnoredFields;
use crate::net::lenient::Count;
use serde::Deserialize;
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
    stream: Option<bool>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    batch_invariant: Option<bool>,
    tools: Option<Vec<RequestTool>>,
    tool_choice: Option<RequestToolChoice>,
    parallel_tool_calls: Option<bool>,
    text: Option<Text>,
    reasoning: Option<Reasoning>,
    #[serde(flatten)]
    others: Map<String, Value>,
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
        let ignored = FIELDS.ignored(&body.others)?;
        let limit = body.max_output_tokens.map(|limit| limit.0);
        if let Some(limit) = limit {
            whole("max_output_tokens", limit, 1, u64::MAX)?;
        }
        let effort = body
            .reasoning
            .as_ref()
            .and_then(|reasoning| reasoning.effort.as_deref());
        let thinking = Thinking::of_effort(effort);
        let form = body
            .text
            .and_then(|text| text.format)
            .map(Format::output_format)
            .transpose()?
            .flatten();
        let tools = tools(body.tools.unwrap_or_default())?;
        let choice = body.tool_choice.map_or(ToolChoice::Auto, ToolChoice::from);
        let several = body.parallel_tool_calls.unwrap_or(true);
        let about = EchoedSettings {
            instructions: body.instructions.clone(),
            limit,
            temperature: body.temperature,
            top_p: body.top_p,
            tools: tools.iter().map(tool_json).collect(),
            tool_choice: choice_json(&choice),
            several,
            format: format_json(form.as_ref()),
        };
        let input = Input::Conversation {
            messages: convert(body.instructions, body.input)?,
            thinking,
        };
        let mut request = GenerateRequest::new(&NAMES, input);
        request.limit = limit;
        request.ignored = ignored;
        request.stream = body.stream.unwrap_or(false);
        let ResponseRequest {
            temperature,
            top_p,
            batch_invariant,
            ..
        } = body;
        request.sampling = SamplingOptions {
            temperature,
            top_p,
            batch_invariant,
            ..SamplingOptions::default()
        };
        request.tools = tools;
        request.tool_choice = choice;
        request.several_calls = several;
        request.form = form.map(|form| ("text.format", form));
        Ok((request, ResponsesEncoder::new(served, about)))
    }
}

impl Format {
    fn output_format(self) -> Result<Option<OutputFormat>, RequestError> {
        match (self.kind, self.schema) {
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

fn tool_json(tool: &Tool) -> Value {
    json!({
        "type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters,
        "strict": true,
    })
}

fn choice_json(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::None => "none".into(),
        ToolChoice::Auto => "auto".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Named(name) => json!({ "type": "function", "name": name }),
        ToolChoice::Allowed { names, required } => {
            let tools: Vec<Value> = names
                .iter()
                .map(|name| json!({ "type": "function", "name": name }))
                .collect();
            let mode = if *required { "required" } else { "auto" };
            json!({ "type": "allowed_tools", "mode": mode, "tools": tools })
        }
    }
}

fn format_json(form: Option<&OutputFormat>) -> Value {
    match form {
        Some(OutputFormat::Schema(schema)) => {
            json!({ "type": "json_schema", "name": "answer", "schema": schema, "strict": true })
        }
        _ => json!({ "type": "text" }),
    }
}
