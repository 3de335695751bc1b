//! Parameters that chat completions and completions share: streaming, sampling, stop strings and
//! output constraints.

use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::request::GenerateRequest;
use crate::core::sampling::SamplingOptions;
use crate::net::body::IgnoredFields;
use serde::Deserialize;
use serde_json::{Map, Value};

/// One string or several.
#[derive(Deserialize, Clone, Debug)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
pub enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    pub fn list(self) -> Vec<String> {
        match self {
            Texts::One(text) => vec![text],
            Texts::Many(texts) => texts,
        }
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
        stream: bool,
        /// Options of the stream.
        stream_options: $crate::api::openai::settings::StreamOptions,
        /// Whether each chunk has the generation speed.
        timings_per_token: bool,
        /// Maximum tokens of an answer; −1 is bounded by the context only.
        max_tokens: i64,
        /// Number of answers to each prompt.
        n: u64,
        /// Strings that end an answer.
        stop: $crate::api::openai::settings::Texts,
        /// Seed of the sampler.
        seed: i64,
        /// See [`SamplingOptions`](crate::core::sampling::SamplingOptions), for this and the
        /// following fields.
        temperature: f64,
        top_p: f64,
        top_k: i64,
        min_p: f64,
        frequency_penalty: f64,
        presence_penalty: f64,
        #[serde(alias = "repeat_penalty")]
        repetition_penalty: f64,
        repeat_last_n: i64,
        logit_bias: serde_json::Map<String, serde_json::Value>,
        batch_invariant: bool,
        /// Whether generation continues past end-of-sequence tokens; for benchmarks.
        ignore_eos: bool,
        /// Grammar that the text must match, in GBNF or Lark.
        #[serde(alias = "guided_grammar")]
        grammar: String,
        /// JSON schema that the text must match.
        #[serde(alias = "json_schema")]
        guided_json: serde_json::Value,
        /// Regular expression that the text must match.
        guided_regex: String,
        /// List of texts, one of which the answer must be.
        guided_choice: Vec<String>,
    }
} } }
pub(super) use common_fields;

macro_rules! declare_common { ({ $($(#[$meta:meta])* $field:ident: $Type:ty,)* }) => {
    /// The fields that all requests share; see [`common_fields`].
    #[derive(Deserialize, Debug)]
    pub struct Common {
        $($(#[$meta])* pub $field: Option<$Type>,)*
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
        /// Takes the shared fields out of the request.
        fn common(&mut self) -> $crate::api::openai::settings::Common {
            $crate::api::openai::settings::Common {
                $($field: self.$field.take(),)*
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
    /// The first field that is unknown or not supported.
    pub fn apply(self, request: &mut GenerateRequest) -> Result<Telling, RequestError> {
        check_fields(&self.others)?;
        request.stream = self.stream.unwrap_or(false);
        if self.stream_options.is_some() && !request.stream {
            return Err(RequestError::parameter(
                "stream_options",
                "stream_options needs a stream: set stream to true",
            ));
        }
        if let Some(n) = self.n {
            request.choices = n;
        }
        request.limit = self
            .max_tokens
            .map(|most| tokens("max_tokens", most))
            .transpose()?
            .flatten()
            .or(request.limit);
        request.sampling = SamplingOptions {
            seed: self.seed,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repetition_penalty,
            repeat_last_n: self.repeat_last_n,
            logit_bias: self.logit_bias,
            batch_invariant: self.batch_invariant,
        };
        request.stop = self.stop.map(Texts::list).unwrap_or_default();
        request.ignore_eos = self.ignore_eos.unwrap_or(false);
        let forms = [
            ("grammar", self.grammar.map(grammar)),
            ("guided_json", self.guided_json.map(OutputFormat::Schema)),
            ("guided_regex", self.guided_regex.map(OutputFormat::Regex)),
            (
                "guided_choice",
                self.guided_choice.map(OutputFormat::Choice),
            ),
        ];
        for (name, form) in forms
            .into_iter()
            .filter_map(|(name, form)| Some((name, form?)))
        {
            if request.form.is_some() {
                let message =
                    format!("{name} conflicts with another output constraint; set only one");
                return Err(RequestError::parameter(name, message));
            }
            request.form = Some((name, form));
        }
        let include_usage = self
            .stream_options
            .and_then(|o| o.include_usage)
            .unwrap_or(false);
        Ok(Telling {
            include_usage,
            timings: self.timings_per_token.unwrap_or(false),
        })
    }
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

/// Parameters that clients send and that are ignored, with the reason.
const IGNORED: &[(&str, &str)] = &[
    ("user", "end-user identifier; not used"),
    ("safety_identifier", "end-user identifier; not used"),
    ("metadata", "labels for OpenAI's dashboard"),
    ("store", "responses are not stored"),
    ("service_tier", "there is a single tier"),
    ("prompt_cache_key", "the prefix cache needs no key"),
    (
        "prompt_cache_retention",
        "--host-cache-mb sets the size of the host KV cache",
    ),
    ("cache_prompt", "llama.cpp; see prompt_cache_key"),
    ("keep_alive", "Ollama; the model stays loaded"),
];

/// Parameters that accept only the listed values, which are the defaults. Null is the same as an
/// absent parameter.
const FIXED_PARAMETERS: &[(&str, &[&str])] = &[
    ("modalities", &["[\"text\"]"]),
    ("verbosity", &["\"medium\""]),
    ("prediction", &[]),
    ("audio", &[]),
    ("web_search_options", &[]),
];

/// Refuses unknown parameters, so that a misspelt name is noticed, and those that are not
/// supported.
fn check_fields(others: &Map<String, Value>) -> Result<(), RequestError> {
    let is_known = |name: &&str| {
        IGNORED.iter().any(|row| row.0 == *name)
            || FIXED_PARAMETERS.iter().any(|row| row.0 == *name)
    };
    let unknown: Vec<&str> = others
        .keys()
        .map(String::as_str)
        .filter(|name| !is_known(name))
        .collect();
    if !unknown.is_empty() {
        return Err(RequestError::unknown(&unknown));
    }
    let refused = FIXED_PARAMETERS.iter().find(|(name, values)| {
        others
            .get(*name)
            .is_some_and(|value| !value.is_null() && !values.contains(&value.to_string().as_str()))
    });
    match refused {
        None => Ok(()),
        Some((name, [])) => Err(RequestError::parameter(
            *name,
            format!("{name} is not supported here"),
        )),
        Some((name, values)) => Err(RequestError::parameter(
            *name,
            format!(
                "{name} must be {}; other values are not supported",
                values.join(" or ")
            ),
        )),
    }
}
