//! Request options; a Modelfile has the same ones as parameters.

use crate::api::fields::KnownFields;
use crate::api::tool_choice::schema_value;
use crate::core::adapters::AdapterChoice;
use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::request::{GenerateRequest, Input, Thinking};
use crate::core::sampling::SamplingOptions;
use crate::net::lenient::{Number, Seed, Switch, Whole};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The `options` object of a request.
#[derive(Deserialize, Debug, Default)]
#[serde(expecting = "an object")]
pub struct Options {
    temperature: Option<Number>,
    top_k: Option<Whole>,
    top_p: Option<Number>,
    min_p: Option<Number>,
    seed: Option<Seed>,
    /// −1 is unlimited, and so is −2, which fills the context.
    num_predict: Option<Whole>,
    stop: Option<Stop>,
    repeat_penalty: Option<Number>,
    repeat_last_n: Option<Whole>,
    presence_penalty: Option<Number>,
    frequency_penalty: Option<Number>,
    batch_invariant: Option<Switch>,
    lora: Option<Vec<AdapterChoice>>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize, Debug)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
enum Stop {
    One(String),
    Many(Vec<Option<String>>),
}

/// Names within `options`: those that are read, ignored in silence, and refused with a reason.
const OPTIONS: KnownFields = KnownFields {
    at: "options.",
    declared: &[
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "num_predict",
        "stop",
        "repeat_penalty",
        "repeat_last_n",
        "presence_penalty",
        "frequency_penalty",
        "batch_invariant",
        "lora",
    ],
    // Hardware settings; the context is at most what the server was started with.
    silent: &[
        "num_ctx",
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
    ],
    refused: &[],
};

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
    stream: Option<Switch>,
) -> Result<GenerateRequest, RequestError> {
    let mut request = GenerateRequest::new(names, input);
    options.unwrap_or_default().apply(&mut request)?;
    request.form = output_format(format)?.map(|form| ("format", form));
    request.stream = stream.is_none_or(|stream| stream.0);
    Ok(request)
}

impl Options {
    /// Applies the options to a request.
    ///
    /// # Errors
    /// The first option that is misspelt or not supported.
    pub fn apply(self, request: &mut GenerateRequest) -> Result<(), RequestError> {
        request.ignored.extend(OPTIONS.ignored(&self.others)?);
        request.limit = match self.num_predict.map(|most| most.0) {
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
            Some(Stop::Many(texts)) => texts.into_iter().flatten().collect(),
        };
        request.sampling = SamplingOptions {
            seed: self.seed.map(|seed| seed.0),
            temperature: self.temperature.map(|number| number.0),
            top_p: self.top_p.map(|number| number.0),
            top_k: self.top_k.map(|k| k.0.max(-1)),
            min_p: self.min_p.map(|number| number.0),
            frequency_penalty: self.frequency_penalty.map(|number| number.0),
            presence_penalty: self.presence_penalty.map(|number| number.0),
            repetition_penalty: self.repeat_penalty.map(|number| number.0),
            repeat_last_n: self.repeat_last_n.map(|n| n.0),
            logit_bias: Vec::new(),
            batch_invariant: self.batch_invariant.map(|switch| switch.0),
            speculate: None,
            lora: self.lora,
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
        Some(schema) if schema_value(schema.clone()).is_object() => {
            Ok(Some(OutputFormat::Schema(schema_value(schema))))
        }
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
        Some(Value::String(text)) if text.is_empty() => Ok(Thinking::default()),
        Some(Value::String(text)) if text == "true" => Ok(Some(true).into()),
        Some(Value::String(text)) if ["false", "none"].contains(&text.as_str()) => {
            Ok(Some(false).into())
        }
        Some(Value::String(level))
            if ["low", "medium", "high", "max"].contains(&level.as_str()) =>
        {
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

/// Names of the fields of chat and generate requests, without a conversation's or prompt's own.
const DECLARED: &[&str] = &[
    "model",
    "messages",
    "prompt",
    "suffix",
    "system",
    "raw",
    "tools",
    "format",
    "options",
    "stream",
    "think",
    "keep_alive",
    "batch_invariant",
];

/// Fields without which the answer would be wrong.
const REFUSED: &[(&str, &str)] = &[
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

/// Returns the ignored ones of a request's undeclared fields.
///
/// # Errors
/// The first field that is misspelt, or set but not supported.
pub fn ignored_fields(others: &Map<String, Value>) -> Result<Vec<String>, RequestError> {
    let fields = KnownFields {
        at: "",
        declared: DECLARED,
        silent: &["truncate", "shift"],
        refused: REFUSED,
    };
    fields.ignored(others)
}
