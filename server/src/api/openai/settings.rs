//! Parameters that chat completions and completions share: streaming, sampling, stop strings and
//! output constraints.

use crate::api::fields::{KnownFields, is_set};
use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::request::GenerateRequest;
use crate::core::sampling::{BiasKey, SamplingOptions};
use crate::net::body::IgnoredFields;
use crate::net::lenient::Switch;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

/// One string or several.
#[derive(Deserialize, Clone, Debug)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
pub enum Texts {
    One(String),
    Many(Vec<Option<String>>),
}

impl Texts {
    pub fn list(self) -> Vec<String> {
        match self {
            Texts::One(text) => vec![text],
            Texts::Many(texts) => texts.into_iter().flatten().collect(),
        }
    }
}

/// Biases of tokens: an object, or llama.cpp's array of pairs, where a text stands for its tokens
/// and false for the lowest bias.
#[derive(Clone, Debug)]
pub struct LogitBias(pub Vec<(BiasKey, Value)>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<LogitBias, D::Error> {
        let bias = |value: Value| match value {
            Value::Bool(false) => json!(-100),
            value => value,
        };
        let pairs = match Value::deserialize(from)? {
            Value::Object(map) => {
                let pairs = map.into_iter();
                let pairs = pairs.map(|(token, value)| (BiasKey::Token(token), bias(value)));
                return Ok(LogitBias(pairs.collect()));
            }
            Value::Array(pairs) => pairs,
            _ => return Err(D::Error::custom("expected an object of biases by token")),
        };
        let pair = |pair: Value| match pair.as_array()?.as_slice() {
            [Value::String(text), value] => {
                Some((BiasKey::Text(text.clone()), bias(value.clone())))
            }
            [token, value] => Some((BiasKey::Token(token.to_string()), bias(value.clone()))),
            _ => None,
        };
        let pairs: Option<Vec<_>> = pairs.into_iter().map(pair).collect();
        let pairs =
            pairs.ok_or_else(|| D::Error::custom("expected pairs of a token and its bias"))?;
        Ok(LogitBias(pairs))
    }
}

/// vLLM's constraint on the answer; at most one field is set.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct StructuredOutputs {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
    /// Not supported, and refused.
    structural_tag: Option<Value>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

impl StructuredOutputs {
    /// Returns the constraints with the names of their fields.
    fn forms(self) -> Result<Vec<(&'static str, OutputFormat)>, RequestError> {
        if self.structural_tag.is_some_and(|tag| is_set(&tag)) {
            let name = "structured_outputs.structural_tag";
            let message = format!("{name} is not supported here: offer tools instead");
            return Err(RequestError::parameter(name, message));
        }
        let object = self.json_object.filter(|&object| object);
        let forms = [
            ("structured_outputs.json", self.json.map(schema)),
            (
                "structured_outputs.regex",
                self.regex.map(OutputFormat::Regex),
            ),
            (
                "structured_outputs.choice",
                self.choice.map(OutputFormat::Choice),
            ),
            ("structured_outputs.grammar", self.grammar.map(grammar)),
            (
                "structured_outputs.json_object",
                object.map(|_| OutputFormat::Schema(json!({ "type": "object" }))),
            ),
        ];
        let forms = forms.into_iter();
        Ok(forms
            .filter_map(|(name, form)| Some((name, form?)))
            .collect())
    }
}

/// Options of a stream.
#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(expecting = "an object")]
pub struct StreamOptions {
    /// Whether the stream ends with a chunk that has the usage.
    pub include_usage: Option<bool>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// Single list of the shared fields; passes it to the macro `$then`, after the tokens it is given.
macro_rules! common_fields { ($then:ident $($given:tt)*) => { $crate::api::openai::settings::$then! {
    $($given)*
    {
        /// Whether the response is streamed.
        stream: $crate::net::lenient::Switch,
        /// Options of the stream.
        stream_options: $crate::api::openai::settings::StreamOptions,
        /// Whether each chunk has the generation speed.
        timings_per_token: $crate::net::lenient::Switch,
        /// Maximum tokens of an answer; −1 is bounded by the context only.
        max_tokens: $crate::net::lenient::Whole,
        /// llama.cpp's name of `max_tokens`.
        n_predict: $crate::net::lenient::Whole,
        /// Number of answers to each prompt.
        n: $crate::net::lenient::Count,
        /// Strings that end an answer.
        stop: $crate::api::openai::settings::Texts,
        /// Seed of the sampler.
        seed: $crate::net::lenient::Seed,
        /// See [`SamplingOptions`](crate::core::sampling::SamplingOptions), for this and the
        /// following fields.
        temperature: $crate::net::lenient::Number,
        top_p: $crate::net::lenient::Number,
        top_k: $crate::net::lenient::Whole,
        min_p: $crate::net::lenient::Number,
        frequency_penalty: $crate::net::lenient::Number,
        presence_penalty: $crate::net::lenient::Number,
        repetition_penalty: $crate::net::lenient::Number,
        /// llama.cpp's name of `repetition_penalty`.
        repeat_penalty: $crate::net::lenient::Number,
        repeat_last_n: $crate::net::lenient::Whole,
        logit_bias: $crate::api::openai::settings::LogitBias,
        batch_invariant: $crate::net::lenient::Switch,
        speculate: $crate::net::lenient::Switch,
        /// Adapters, as llama.cpp's servers take them.
        lora: Vec<$crate::core::adapters::AdapterChoice>,
        /// Whether generation continues past end-of-sequence tokens; for benchmarks.
        ignore_eos: $crate::net::lenient::Switch,
        /// Grammar that the text must match, in GBNF or Lark.
        grammar: String,
        /// vLLM's name of `grammar`.
        guided_grammar: String,
        /// JSON schema that the text must match.
        guided_json: serde_json::Value,
        /// llama.cpp's name of `guided_json`.
        json_schema: serde_json::Value,
        /// Regular expression that the text must match.
        guided_regex: String,
        /// List of texts, one of which the answer must be.
        guided_choice: Vec<String>,
        /// The newer form of the `guided_…` fields.
        structured_outputs: $crate::api::openai::settings::StructuredOutputs,
    }
} } }
pub(super) use common_fields;

macro_rules! declare_common { ({ $($(#[$meta:meta])* $field:ident: $Type:ty,)* }) => {
    /// The fields that all requests share; see [`common_fields`].
    #[derive(Debug)]
    pub struct Common {
        $($(#[$meta])* pub $field: Option<$Type>,)*
        /// Names that the request declares.
        pub declared: &'static [&'static str],
        /// Fields that are not declared.
        pub others: Map<String, Value>,
    }
} }
pub(super) use declare_common;
common_fields!(declare_common);

/// Declares a request with its own fields and the shared ones.
macro_rules! declare_request { (
    $(#[$about:meta])* $Name:ident { $($(#[$doc:meta])* $own:ident: $Own:ty,)* }
    { $($(#[$meta:meta])* $field:ident: $Type:ty,)* }
) => {
    $(#[$about])*
    #[derive(serde::Deserialize, Debug)]
    #[serde(expecting = "an object")]
    pub struct $Name {
        $($(#[$doc])* $own: $Own,)*
        $($(#[$meta])* $field: Option<$Type>,)*
        /// Fields that are not declared.
        #[serde(flatten)]
        others: serde_json::Map<String, serde_json::Value>,
    }
    impl $Name {
        /// Names of the declared fields.
        const FIELDS: &'static [&'static str] = &[$(stringify!($own),)* $(stringify!($field),)*];
        /// Takes the shared fields out of the request.
        fn common(&mut self) -> $crate::api::openai::settings::Common {
            $crate::api::openai::settings::Common {
                $($field: self.$field.take(),)*
                declared: Self::FIELDS,
                others: std::mem::take(&mut self.others),
            }
        }
    }
} }
pub(super) use declare_request;

/// Settings of the response's encoding.
#[derive(Clone, Copy, Debug)]
pub struct Telling {
    /// Whether a stream ends with a chunk that has the usage.
    pub include_usage: bool,
    /// Whether each chunk has the generation speed.
    pub timings: bool,
}

impl Common {
    /// Applies the fields to a request and returns the settings of its encoding.
    ///
    /// # Errors
    /// The first field that is misspelt or not supported.
    pub fn apply(mut self, request: &mut GenerateRequest) -> Result<Telling, RequestError> {
        let fields = KnownFields {
            at: "",
            declared: self.declared,
            silent: SILENT,
            refused: REFUSED,
        };
        request.ignored.extend(fields.ignored(&self.others)?);
        check_modalities(&self.others)?;
        let forms = self.take_forms()?;
        let is_on = |switch: Option<Switch>| switch.is_some_and(|switch| switch.0);
        request.stream = is_on(self.stream);
        let include_usage = self.stream_options.and_then(|o| o.include_usage);
        if include_usage == Some(true) && !request.stream {
            return Err(RequestError::parameter(
                "stream_options",
                "stream_options needs a stream: set stream to true",
            ));
        }
        if let Some(n) = self.n {
            request.choices = n.0;
        }
        request.limit = self
            .max_tokens
            .or(self.n_predict)
            .map(|most| tokens("max_tokens", most.0))
            .transpose()?
            .flatten()
            .or(request.limit);
        let penalty = self.repetition_penalty.or(self.repeat_penalty);
        request.sampling = SamplingOptions {
            seed: self.seed.map(|seed| seed.0),
            temperature: self.temperature.map(|number| number.0),
            top_p: self.top_p.map(|number| number.0),
            top_k: self.top_k.map(|k| k.0),
            min_p: self.min_p.map(|number| number.0),
            frequency_penalty: self.frequency_penalty.map(|number| number.0),
            presence_penalty: self.presence_penalty.map(|number| number.0),
            repetition_penalty: penalty.map(|number| number.0),
            repeat_last_n: self.repeat_last_n.map(|n| n.0),
            logit_bias: self.logit_bias.map(|bias| bias.0).unwrap_or_default(),
            batch_invariant: self.batch_invariant.map(|switch| switch.0),
            speculate: self.speculate.map(|switch| switch.0),
            lora: self.lora,
        };
        request.stop = self.stop.map(Texts::list).unwrap_or_default();
        request.ignore_eos = is_on(self.ignore_eos);
        for (name, form) in forms {
            if request.form.is_some() {
                let message =
                    format!("{name} conflicts with another output constraint; set only one");
                return Err(RequestError::parameter(name, message));
            }
            request.form = Some((name, form));
        }
        Ok(Telling {
            include_usage: include_usage.unwrap_or(false),
            timings: is_on(self.timings_per_token),
        })
    }
    /// Takes the constraints on the answer with the names of their fields.
    fn take_forms(&mut self) -> Result<Vec<(&'static str, OutputFormat)>, RequestError> {
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        let value = |value: Option<Value>| value.filter(|value| *value != "");
        let grammars = text(self.grammar.take()).or(text(self.guided_grammar.take()));
        let schemas = value(self.guided_json.take()).or(value(self.json_schema.take()));
        let choices = self.guided_choice.take().filter(|texts| !texts.is_empty());
        let forms = [
            ("grammar", grammars.map(grammar)),
            ("guided_json", schemas.map(schema)),
            (
                "guided_regex",
                text(self.guided_regex.take()).map(OutputFormat::Regex),
            ),
            ("guided_choice", choices.map(OutputFormat::Choice)),
        ];
        let newer = self.structured_outputs.take();
        let newer = newer.map_or(Ok(Vec::new()), StructuredOutputs::forms)?;
        let forms = forms.into_iter();
        let forms = forms.filter_map(|(name, form)| Some((name, form?)));
        Ok(forms.chain(newer).collect())
    }
}

/// Converts a JSON schema, which may be JSON text.
fn schema(schema: Value) -> OutputFormat {
    let parsed = schema
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok());
    OutputFormat::Schema(parsed.unwrap_or(schema))
}

/// GBNF's `::=` does not occur in Lark's rules, so it identifies the notation.
fn grammar(text: String) -> OutputFormat {
    if text.contains("::=") {
        OutputFormat::Gbnf(text)
    } else {
        OutputFormat::Lark(text)
    }
}

/// Parses a token limit; `None` for −1, which is unlimited.
///
/// # Errors
/// When the limit is another negative number.
pub fn tokens(name: &str, most: i64) -> Result<Option<u64>, RequestError> {
    match u64::try_from(most) {
        Ok(most) => Ok(Some(most)),
        Err(_) if most == -1 => Ok(None),
        Err(_) => Err(RequestError::parameter(
            name,
            format!("{name} is {most}; it must be at least 0, or −1 for unlimited"),
        )),
    }
}

/// Clients' labels and hints, which change no answer.
const SILENT: &[&str] = &[
    "user",
    "safety_identifier",
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_prompt",
    "keep_alive",
    "modalities",
];

/// Parameters without which the answer would be wrong.
const REFUSED: &[(&str, &str)] = &[
    ("audio", "this model writes text only"),
    ("web_search_options", "there is no web search: offer a tool"),
    ("use_beam_search", "answers are sampled"),
    (
        "bad_words",
        "constrain the answer with guided_regex or logit_bias",
    ),
    ("allowed_token_ids", "constrain the answer with grammar"),
    ("prompt_embeds", "send text or tokens"),
    ("image_data", "this model reads text only"),
    ("multimodal_data", "this model reads text only"),
];

/// Checks `modalities`: answers are text.
fn check_modalities(others: &Map<String, Value>) -> Result<(), RequestError> {
    match others.get("modalities") {
        None | Some(Value::Null) => Ok(()),
        Some(value) if *value == json!(["text"]) || *value == json!([]) => Ok(()),
        Some(_) => Err(RequestError::parameter(
            "modalities",
            "modalities must be [\"text\"] here",
        )),
    }
}
