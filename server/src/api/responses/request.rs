//! Requests to `/v1/responses`.

use super::encoder::{EchoedSettings, ResponsesEncoder};
use super::items::{RequestInput, convert};
use crate::api::interface::Interface;
use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::model::Served;
use crate::core::request::{GenerateRequest, Input, Thinking};
use crate::core::sampling::{SamplingOptions, whole};
use crate::core::tools::{Tool, ToolChoice, ToolField};
use crate::net::body::IgnoredFields;
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
    max_output_tokens: Option<u64>,
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
struct RequestTool {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Debug)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": …}"
)]
enum RequestToolChoice {
    Mode(Mode),
    Named(Named),
}

#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(rename_all = "lowercase")]
enum Mode {
    None,
    Auto,
    Required,
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct Named {
    name: String,
    #[serde(flatten)]
    _others: IgnoredFields,
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
const IGNORED: &[&str] = &[
    "user",
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
        check_fields(&body.others)?;
        if let Some(limit) = body.max_output_tokens {
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
        let tools = body.tools.unwrap_or_default().into_iter().enumerate();
        let tools = tools
            .map(|(i, tool)| tool.convert(i))
            .collect::<Result<Vec<_>, _>>()?;
        let choice = match body.tool_choice {
            None | Some(RequestToolChoice::Mode(Mode::Auto)) => ToolChoice::Auto,
            Some(RequestToolChoice::Mode(Mode::None)) => ToolChoice::None,
            Some(RequestToolChoice::Mode(Mode::Required)) => ToolChoice::Required,
            Some(RequestToolChoice::Named(named)) => ToolChoice::Named(named.name),
        };
        let several = body.parallel_tool_calls.unwrap_or(true);
        let about = EchoedSettings {
            instructions: body.instructions.clone(),
            limit: body.max_output_tokens,
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
        request.limit = body.max_output_tokens;
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

fn check_fields(others: &Map<String, Value>) -> Result<(), RequestError> {
    let meant = |value: &Value| !value.is_null() && *value != false && *value != 0;
    for (name, why) in REFUSED {
        if others.get(*name).is_some_and(meant) {
            return Err(RequestError::parameter(
                *name,
                format!("{name} is not supported here: {why}"),
            ));
        }
    }
    let is_known = |name: &str| IGNORED.contains(&name) || REFUSED.iter().any(|row| row.0 == name);
    let unknown: Vec<&str> = others
        .keys()
        .map(String::as_str)
        .filter(|name| !is_known(name))
        .collect();
    if unknown.is_empty() {
        Ok(())
    } else {
        Err(RequestError::unknown(&unknown))
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

impl RequestTool {
    fn convert(self, i: usize) -> Result<Tool, RequestError> {
        if self.kind != "function" {
            let kind: String = self.kind.chars().take(40).collect();
            let message = format!("tools of type `{kind}` are not supported; only `function` is");
            return Err(RequestError::parameter(format!("tools[{i}].type"), message));
        }
        let name = self.name.unwrap_or_default();
        let tool = Tool {
            name,
            description: self.description,
            parameters: self.parameters,
        };
        let at = |place| match place {
            ToolField::Name => "name",
            ToolField::Parameters => "parameters",
        };
        tool.check().map_err(|(place, why)| {
            RequestError::parameter(format!("tools[{i}].{}", at(place)), why)
        })?;
        Ok(tool)
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
