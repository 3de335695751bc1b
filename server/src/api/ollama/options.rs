//! Request options; a Modelfile has the same ones as parameters.

use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::model::Served;
use crate::core::request::{GenerateRequest, Input, Thinking};
use crate::core::sampling::SamplingOptions;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The `options` object of a request.
#[derive(Deserialize, Debug, Default)]
#[serde(expecting = "an object")]
pub struct Options {
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    seed: Option<i64>,
    /// −1 is unlimited, and so is −2, which fills the context.
    num_predict: Option<i64>,
    num_ctx: Option<u64>,
    stop: Option<Stop>,
    repeat_penalty: Option<f64>,
    repeat_last_n: Option<i64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    batch_invariant: Option<bool>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize, Debug)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

/// Options that are ignored: hardware settings, and samplers that are off by default.
const IGNORED: &[&str] = &[
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "low_vram",
    "vocab_only",
    "use_mmap",
    "use_mlock",
    "num_thread",
    "numa",
    "f16_kv",
    "logits_all",
    "penalize_newline",
    "typical_p",
    "tfs_z",
];

/// Field names of Ollama's requests, for error messages; `input` names the prompt's field.
pub const fn names(input: &'static str) -> FieldNames {
    FieldNames {
        input,
        tools: "tools",
        tool_choice: "tool_choice",
        limit: "options.num_predict",
        choices: "n",
        stop: "options.stop",
    }
}

/// Builds a generation request from the fields that chat and generate requests share.
///
/// # Errors
/// The first field that is malformed or not supported.
pub fn request(
    names: &'static FieldNames,
    input: Input,
    options: Option<Options>,
    format: Option<Value>,
    stream: Option<bool>,
    served: &Served,
) -> Result<GenerateRequest, RequestError> {
    let mut request = GenerateRequest::new(names, input);
    options.unwrap_or_default().apply(&mut request, served)?;
    request.form = output_format(format)?.map(|form| ("format", form));
    request.stream = stream.unwrap_or(true);
    Ok(request)
}

impl Options {
    /// Applies the options to a request.
    ///
    /// # Errors
    /// The first option that is unknown or not supported.
    pub fn apply(self, request: &mut GenerateRequest, served: &Served) -> Result<(), RequestError> {
        let unknown: Vec<&str> = self
            .others
            .keys()
            .map(String::as_str)
            .filter(|name| !IGNORED.contains(name))
            .collect();
        if !unknown.is_empty() {
            return Err(RequestError::unknown(&unknown));
        }
        if let Some(context) = self
            .num_ctx
            .filter(|&context| context > served.context as u64)
        {
            let message = format!(
                "num_ctx is {context}, but the context holds {} tokens; start the server with a larger --ctx",
                served.context
            );
            return Err(RequestError::parameter("options.num_ctx", message));
        }
        request.limit = match self.num_predict {
            None | Some(-2 | -1) => None,
            Some(most) => Some(u64::try_from(most).map_err(|_| {
                RequestError::parameter(
                    "options.num_predict",
                    format!("num_predict is {most}; it must be −2 or more"),
                )
            })?),
        };
        request.stop = match self.stop {
            None => Vec::new(),
            Some(Stop::One(text)) => vec![text],
            Some(Stop::Many(texts)) => texts,
        };
        request.sampling = SamplingOptions {
            seed: self.seed,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            logit_bias: None,
            batch_invariant: self.batch_invariant,
        };
        Ok(())
    }
}

/// Parses `format`: `"json"` or a JSON schema.
///
/// # Errors
/// When it is neither.
pub fn output_format(format: Option<Value>) -> Result<Option<OutputFormat>, RequestError> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => {
            Ok(Some(OutputFormat::Schema(json!({ "type": "object" }))))
        }
        Some(schema @ Value::Object(_)) => Ok(Some(OutputFormat::Schema(schema))),
        Some(_) => Err(RequestError::parameter(
            "format",
            "format must be \"json\" or a JSON schema, an object",
        )),
    }
}

/// Parses `think`: a switch or a reasoning effort.
///
/// # Errors
/// When it is neither a boolean nor one of the known efforts.
pub fn thinking(think: Option<Value>) -> Result<Thinking, RequestError> {
    match think {
        None | Some(Value::Null) => Ok(Thinking::default()),
        Some(Value::Bool(think)) => Ok(Some(think).into()),
        Some(Value::String(level)) if ["low", "medium", "high"].contains(&level.as_str()) => {
            Ok(Thinking {
                switch: Some(true),
                ..Thinking::of_effort(Some(&level))
            })
        }
        Some(_) => Err(RequestError::parameter(
            "think",
            "think must be true, false, \"low\", \"medium\" or \"high\"",
        )),
    }
}

/// Fields that are accepted: two that are ignored, as an overlong conversation is refused, and five
/// that [`check_fields`] refuses unless their value is empty.
const IGNORED_FIELDS: &[&str] = &[
    "truncate",
    "shift",
    "logprobs",
    "top_logprobs",
    "context",
    "images",
    "template",
];

/// Refuses unknown fields, and known ones that are set but not supported.
///
/// # Errors
/// The first such field.
pub fn check_fields(others: &Map<String, Value>) -> Result<(), RequestError> {
    let unknown: Vec<&str> = others
        .keys()
        .map(String::as_str)
        .filter(|name| !IGNORED_FIELDS.contains(name))
        .collect();
    if !unknown.is_empty() {
        return Err(RequestError::unknown(&unknown));
    }
    let meant = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        _ => true,
    };
    let why = [
        ("images", "this model reads text only"),
        (
            "template",
            "the model's own template is used; set raw to true to use none",
        ),
        ("context", "send the conversation to /api/chat"),
        (
            "logprobs",
            "/v1/chat/completions and /v1/completions return log-probabilities",
        ),
        (
            "top_logprobs",
            "/v1/chat/completions and /v1/completions return log-probabilities",
        ),
    ];
    for (name, why) in why {
        if others.get(name).is_some_and(meant) {
            return Err(RequestError::parameter(
                name,
                format!("{name} is not supported here: {why}"),
            ));
        }
    }
    Ok(())
}
