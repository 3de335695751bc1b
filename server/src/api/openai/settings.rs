//! What requests of both kinds have in common: which model, how tokens are chosen, when to stop, how to answer.

use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::request::GenerateRequest;
use crate::core::sampling::SamplingOptions;
use crate::net::body::IgnoredFields;
use serde::Deserialize;
use serde_json::{Map, Value};

/// One text or several.
#[derive(Deserialize, Clone, Debug)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
pub enum Texts {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Texts {
    /// As a list.
    pub fn list(self) -> Vec<String> {
        match self {
            Texts::One(text) => vec![text],
            Texts::Many(texts) => texts,
        }
    }
}

/// How a stream is to be.
#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(expecting = "an object")]
pub struct StreamOptions {
    /// End with the numbers of tokens?
    pub include_usage: Option<bool>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// The one list of the fields that all requests have. Passes them on to a macro, after what it is given.
macro_rules! common_fields { ($then:ident $($given:tt)*) => { $crate::api::openai::settings::$then! {
    $($given)*
    {
        /// Tell text as it comes?
        stream: bool,
        /// How.
        stream_options: $crate::api::openai::settings::StreamOptions,
        /// Tell with every piece how fast it goes?
        timings_per_token: bool,
        /// Most tokens of an answer; −1 is as many as there is room for.
        max_tokens: i64,
        /// Answers.
        n: u64,
        /// Texts that end an answer.
        stop: $crate::api::openai::settings::Texts,
        /// Which random stream.
        seed: i64,
        /// See [`SamplingOptions`](crate::core::sampling::SamplingOptions), for this and what follows.
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
        /// Go on where the model would end? For measurements.
        ignore_eos: bool,
        /// What the text must be: a grammar, in GBNF or Lark.
        #[serde(alias = "guided_grammar")]
        grammar: String,
        /// JSON of that schema.
        #[serde(alias = "json_schema")]
        guided_json: serde_json::Value,
        /// What that expression matches.
        guided_regex: String,
        /// One of these.
        guided_choice: Vec<String>,
    }
} } }
pub(super) use common_fields;

macro_rules! declare_common { ({ $($(#[$meta:meta])* $field:ident: $Type:ty,)* }) => {
    /// The fields that all requests have; see [`common_fields`].
    #[derive(Deserialize, Debug)]
    pub struct Common {
        $($(#[$meta])* pub $field: Option<$Type>,)*
        /// All others.
        pub others: Map<String, Value>,
    }
} }
pub(super) use declare_common;
common_fields!(declare_common);

/// Declares a request: its own fields, and those that all have.
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
        /// All others.
        #[serde(flatten)]
        others: serde_json::Map<String, serde_json::Value>,
    }
    impl $Name {
        /// Takes the fields that all requests have.
        fn common(&mut self) -> $crate::api::openai::settings::Common {
            $crate::api::openai::settings::Common {
                $($field: self.$field.take(),)*
                others: std::mem::take(&mut self.others),
            }
        }
    }
} }
pub(super) use declare_request;

/// How answers are told.
#[derive(Clone, Copy, Debug)]
pub struct Telling {
    /// End a stream with the numbers of tokens?
    pub include_usage: bool,
    /// Tell with every piece how fast it goes?
    pub timings: bool,
}

impl Common {
    /// Writes them into a request; how its answers are told.
    ///
    /// # Errors
    /// The first that cannot be honoured.
    pub fn apply(self, request: &mut GenerateRequest) -> Result<Telling, RequestError> {
        known(&self.others)?;
        request.stream = self.stream.unwrap_or(false);
        if self.stream_options.is_some() && !request.stream {
            return Err(RequestError::parameter(
                "stream_options",
                "stream_options is for streams only: set stream to true",
            ));
        }
        if let Some(n) = self.n {
            request.choices = n;
        }
        request.limit = self.max_tokens.map(|most| tokens("max_tokens", most)).transpose()?.flatten().or(request.limit);
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
            ("guided_choice", self.guided_choice.map(OutputFormat::Choice)),
        ];
        for (name, form) in forms.into_iter().filter_map(|(name, form)| Some((name, form?))) {
            if request.form.is_some() {
                let message = format!("{name} is one of several things that the answer must be; one is possible");
                return Err(RequestError::parameter(name, message));
            }
            request.form = Some((name, form));
        }
        let include_usage = self.stream_options.and_then(|o| o.include_usage).unwrap_or(false);
        Ok(Telling { include_usage, timings: self.timings_per_token.unwrap_or(false) })
    }
}

/// llama.cpp's notation has a sign that Lark has not.
fn grammar(text: String) -> OutputFormat {
    if text.contains("::=") { OutputFormat::Gbnf(text) } else { OutputFormat::Lark(text) }
}

/// Most tokens of an answer; none for −1, which is no bound.
///
/// # Errors
/// When it is another negative number.
pub fn tokens(name: &str, most: i64) -> Result<Option<u64>, RequestError> {
    match u64::try_from(most) {
        Ok(most) => Ok(Some(most)),
        Err(_) if most == -1 => Ok(None),
        Err(_) => {
            Err(RequestError::parameter(name, format!("{name} is {most}; it must be at least 0, or −1 for no bound")))
        }
    }
}

/// Parameters that clients and pages send and that change no answer of ours, and why.
const IGNORED: &[(&str, &str)] = &[
    ("user", "whose request it is"),
    ("safety_identifier", "whose request it is"),
    ("metadata", "labels for a dashboard"),
    ("store", "answers are kept nowhere"),
    ("service_tier", "there is one"),
    ("prompt_cache_key", "prompts that begin alike share their beginning by themselves"),
    ("prompt_cache_retention", "what is kept is a matter of the server's --keep"),
    ("cache_prompt", "of llama.cpp: as prompt_cache_key"),
    ("keep_alive", "of Ollama: the model stays"),
];

/// Parameters that only these values are possible of, which is what there is without them. Null stands for leaving one out.
const FIXED_PARAMETERS: &[(&str, &[&str])] = &[
    ("modalities", &["[\"text\"]"]),
    ("verbosity", &["\"medium\""]),
    ("prediction", &[]),
    ("audio", &[]),
    ("web_search_options", &[]),
];

/// Refuses the parameters that nobody knows, lest a slip of the pen goes unnoticed, and those that cannot be honoured.
fn known(others: &Map<String, Value>) -> Result<(), RequestError> {
    let is_known =
        |name: &&str| IGNORED.iter().any(|row| row.0 == *name) || FIXED_PARAMETERS.iter().any(|row| row.0 == *name);
    let unknown: Vec<&str> = others.keys().map(String::as_str).filter(|name| !is_known(name)).collect();
    if !unknown.is_empty() {
        return Err(RequestError::unknown(&unknown));
    }
    let refused = FIXED_PARAMETERS.iter().find(|(name, values)| {
        others.get(*name).is_some_and(|value| !value.is_null() && !values.contains(&value.to_string().as_str()))
    });
    match refused {
        None => Ok(()),
        Some((name, [])) => Err(RequestError::parameter(*name, format!("{name} is not possible here"))),
        Some((name, values)) => {
            Err(RequestError::parameter(*name, format!("{name} can only be {} here", values.join(" or "))))
        }
    }
}
