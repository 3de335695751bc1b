//! `/v1/messages` and `/v1/messages/count_tokens`.

use super::content::{AnthropicMessage, MessageContent, convert};
use super::encoder::MessageEncoder;
use crate::api::fields::KnownFields;
use crate::api::interface::Interface;
use crate::api::tool_choice::{leave_out, schema_value};
use crate::app::App;
use crate::core::adapters::AdapterChoice;
use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::model::Served;
use crate::core::preprocess::Preprocessor;
use crate::core::request::{GenerateRequest, Input, ReasoningLimit, Thinking};
use crate::core::sampling::{SamplingOptions, whole};
use crate::core::tools::{Tool, ToolChoice, ToolField, ToolSet};
use crate::net::body::{self, IgnoredFields, UnreadRequest};
use crate::net::ignored;
use crate::net::lenient::{Count, Number, Switch, Whole};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Body of `/v1/messages`.
#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
pub struct MessageRequest {
    model: Option<String>,
    messages: Vec<AnthropicMessage>,
    max_tokens: Option<Count>,
    system: Option<MessageContent>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<Switch>,
    temperature: Option<Number>,
    top_p: Option<Number>,
    top_k: Option<Whole>,
    batch_invariant: Option<bool>,
    lora: Option<Vec<AdapterChoice>>,
    tools: Option<Vec<RequestTool>>,
    tool_choice: Option<RequestToolChoice>,
    thinking: Option<RequestThinking>,
    output_config: Option<OutputConfig>,
    output_format: Option<SchemaFormat>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct RequestTool {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    name: String,
    description: Option<String>,
    input_schema: Option<Value>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct RequestToolChoice {
    #[serde(rename = "type")]
    kind: ChoiceKind,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(rename_all = "lowercase")]
enum ChoiceKind {
    Auto,
    Any,
    Tool,
    None,
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct RequestThinking {
    #[serde(rename = "type")]
    kind: ThinkingKind,
    budget_tokens: Option<Whole>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

impl RequestThinking {
    fn control(&self) -> Result<Thinking, RequestError> {
        let (switch, budget) = match self.kind {
            ThinkingKind::Enabled => (Some(true), self.budget_tokens),
            ThinkingKind::Disabled => (Some(false), None),
            ThinkingKind::Adaptive => (None, self.budget_tokens),
        };
        let limit = |tokens: Whole| ReasoningLimit::new("thinking.budget_tokens", tokens.0);
        Ok(Thinking {
            switch,
            budget: budget.map(limit).transpose()?,
            ..Thinking::default()
        })
    }
}

#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(rename_all = "lowercase")]
enum ThinkingKind {
    Enabled,
    Disabled,
    Adaptive,
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct OutputConfig {
    format: Option<SchemaFormat>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct SchemaFormat {
    schema: Value,
    #[serde(flatten)]
    _others: IgnoredFields,
}

const NAMES: FieldNames = FieldNames {
    input: "messages",
    tools: "tools",
    tool_choice: "tool_choice",
    limit: "max_tokens",
    choices: "n",
    stop: "stop_sequences",
};

/// Parameters that are accepted and ignored, such as metadata, billing and caching hints.
const SILENT: &[&str] = &[
    "metadata",
    "anthropic_beta",
    "anthropic_version",
    "service_tier",
    "inference_geo",
    "cache_control",
    "context_management",
    "betas",
];

/// Fields of the request.
const FIELDS: KnownFields = KnownFields {
    at: "",
    declared: &[
        "model",
        "messages",
        "max_tokens",
        "system",
        "stop_sequences",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "batch_invariant",
        "lora",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "output_format",
    ],
    silent: SILENT,
    refused: &[
        ("mcp_servers", "offer their tools as tools"),
        ("container", "there are no containers"),
    ],
};

/// The endpoint `/v1/messages`.
pub struct Messages;

impl Interface for Messages {
    type Body = MessageRequest;
    type Encoder = MessageEncoder;
    fn model(body: &MessageRequest) -> Option<&str> {
        body.model.as_deref()
    }
    fn request(
        body: MessageRequest,
        served: &Arc<Served>,
    ) -> Result<(GenerateRequest, MessageEncoder), RequestError> {
        let limit = body
            .max_tokens
            .ok_or_else(|| RequestError::missing("max_tokens"))?
            .0;
        whole("max_tokens", limit, 1, u64::MAX)?;
        let request = body.request()?;
        Ok((request, MessageEncoder::new(served)))
    }
}

impl MessageRequest {
    fn request(self) -> Result<GenerateRequest, RequestError> {
        let mut ignored = FIELDS.ignored(&self.others)?;
        let thinking = self.thinking.as_ref().map(RequestThinking::control);
        let thinking = thinking.transpose()?.unwrap_or_default();
        let input = Input::Conversation {
            messages: convert(self.system, self.messages, &mut ignored)?,
            thinking,
        };
        let mut request = GenerateRequest::new(&NAMES, input);
        request.limit = self.max_tokens.map(|limit| limit.0);
        request.stop = self.stop_sequences.unwrap_or_default();
        request.stream = self.stream.is_some_and(|stream| stream.0);
        let MessageRequest {
            temperature,
            top_p,
            top_k,
            batch_invariant,
            lora,
            ..
        } = self;
        request.sampling = SamplingOptions {
            temperature: temperature.map(|number| number.0),
            top_p: top_p.map(|number| number.0),
            top_k: top_k.map(|k| k.0),
            lora,
            batch_invariant,
            ..SamplingOptions::default()
        };
        let format = self
            .output_config
            .and_then(|config| config.format)
            .or(self.output_format);
        request.form = format.map(|format| ("output_config", OutputFormat::Schema(format.schema)));
        let tools = self.tools.unwrap_or_default().into_iter().enumerate();
        request.tools = tools
            .filter_map(|(i, tool)| tool.convert(i, &mut ignored).transpose())
            .collect::<Result<_, _>>()?;
        request.ignored = ignored;
        if let Some(choice) = self.tool_choice {
            request.several_calls = choice.disable_parallel_tool_use != Some(true);
            request.tool_choice = match choice.kind {
                ChoiceKind::Auto => ToolChoice::Auto,
                ChoiceKind::Any => ToolChoice::Required,
                ChoiceKind::None => ToolChoice::None,
                ChoiceKind::Tool => ToolChoice::Named(
                    choice
                        .name
                        .ok_or_else(|| RequestError::missing("tool_choice.name"))?,
                ),
            };
        }
        Ok(request)
    }
}

impl RequestTool {
    /// Returns tool `i` of the request; `None` if it is of a hosted type, which is named in
    /// `ignored`.
    fn convert(self, i: usize, ignored: &mut Vec<String>) -> Result<Option<Tool>, RequestError> {
        if let Some(kind) = self
            .kind
            .filter(|kind| kind != "custom" && kind != "function")
        {
            leave_out("tools", &kind, ignored);
            return Ok(None);
        }
        let tool = Tool {
            name: self.name,
            description: self.description,
            parameters: self.input_schema.map(schema_value),
        };
        let at = |place| match place {
            ToolField::Name => "name",
            ToolField::Parameters => "input_schema",
        };
        tool.check().map_err(|(place, why)| {
            RequestError::parameter(format!("tools[{i}].{}", at(place)), why)
        })?;
        Ok(Some(tool))
    }
}

/// `/v1/messages/count_tokens`: counts the prompt's tokens without running it.
///
/// # Errors
/// The same as for `/v1/messages`.
pub async fn count(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Response, RequestError> {
    let (read, client, _) = asked.json(&app).await?;
    let counted = app.run_blocking(client, move |models| {
        let body = body::parse::<MessageRequest>(&read)?;
        let preprocessor = Preprocessor::for_model(models, body.model.as_deref())?;
        let mut request = body.request()?;
        let ignored = std::mem::take(&mut request.ignored);
        let tools = ToolSet::new(
            &request.tools,
            &request.tool_choice,
            request.several_calls,
            &NAMES,
        )?;
        let prompts = preprocessor.prompts(request.input, &tools, &NAMES)?;
        let lengths = prompts.iter().map(|prompt| prompt.tokens.len());
        Ok((lengths.sum::<usize>(), ignored))
    });
    let (counted, ignored) = counted.await?;
    let mut response = Json(json!({ "input_tokens": counted })).into_response();
    ignored::name(&mut response, &ignored);
    Ok(response)
}
