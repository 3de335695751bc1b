//! What requests of both kinds have in common: which model, how tokens are chosen, when to stop, how to answer.

use crate::app::App;
use crate::body::Others;
use crate::error::ApiError;
use crate::settings::Settings;
use gristmill_llm::prefix::Reuse;
use gristmill_llm::sampling::SamplingParams;
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

/// How a stream is to be.
#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(expecting = "an object")]
pub struct StreamOptions {
    /// End with the numbers of tokens?
    pub include_usage: Option<bool>,
    #[serde(flatten)]
    _others: Others,
}

/// Declares a request: its own fields, and those that all have.
macro_rules! request { ($(#[$about:meta])* $Name:ident { $($(#[$doc:meta])* $field:ident: $Type:ty,)* }) => {
    $(#[$about])*
    #[derive(serde::Deserialize, Clone, Debug)]
    #[serde(expecting = "an object")]
    struct $Name {
        $($(#[$doc])* $field: $Type,)*
        /// Which model.
        model: Option<String>,
        /// Tell text as it comes?
        stream: Option<bool>,
        /// How.
        stream_options: Option<$crate::openai::settings::StreamOptions>,
        /// Tell with every piece how fast it goes?
        timings_per_token: Option<bool>,
        /// Most tokens of an answer.
        max_tokens: Option<u64>,
        /// Answers.
        n: Option<u64>,
        /// Texts that end an answer.
        stop: Option<$crate::openai::settings::Texts>,
        /// Which random stream.
        seed: Option<i64>,
        /// See [`SamplingParams`](gristmill_llm::sampling::SamplingParams).
        temperature: Option<f64>,
        /// Likewise.
        top_p: Option<f64>,
        /// Likewise; 0 and −1 keep all.
        top_k: Option<i64>,
        /// Likewise.
        min_p: Option<f64>,
        /// Likewise.
        frequency_penalty: Option<f64>,
        /// Likewise.
        presence_penalty: Option<f64>,
        /// Likewise: `repeat_penalty`.
        #[serde(alias = "repeat_penalty")]
        repetition_penalty: Option<f64>,
        /// Likewise: `penalty_last_n`; −1 is all of the context.
        repeat_last_n: Option<i64>,
        /// Added to the logits of tokens, by their ids.
        logit_bias: Option<serde_json::Map<String, serde_json::Value>>,
        /// Go on where the model would end? For measurements.
        ignore_eos: Option<bool>,
        /// All others.
        #[serde(flatten)]
        others: serde_json::Map<String, serde_json::Value>,
    }
    impl $Name {
        /// The fields that all requests have, as they are.
        fn raw(&self) -> $crate::openai::settings::Raw<'_> {
            $crate::openai::settings::Raw {
                model: self.model.as_deref(),
                stream: self.stream.unwrap_or(false),
                stream_options: self.stream_options,
                timings: self.timings_per_token.unwrap_or(false),
                max_tokens: self.max_tokens,
                n: self.n,
                stop: self.stop.as_ref(),
                seed: self.seed,
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                min_p: self.min_p,
                frequency_penalty: self.frequency_penalty,
                presence_penalty: self.presence_penalty,
                repetition_penalty: self.repetition_penalty,
                repeat_last_n: self.repeat_last_n,
                logit_bias: self.logit_bias.as_ref(),
                ignore_eos: self.ignore_eos.unwrap_or(false),
                others: &self.others,
            }
        }
    }
} }
pub(super) use request;

/// The fields that all requests have; see [`request`].
pub struct Raw<'r> {
    pub model: Option<&'r str>,
    pub stream: bool,
    pub stream_options: Option<StreamOptions>,
    pub timings: bool,
    pub max_tokens: Option<u64>,
    pub n: Option<u64>,
    pub stop: Option<&'r Texts>,
    pub seed: Option<i64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub repeat_last_n: Option<i64>,
    pub logit_bias: Option<&'r Map<String, Value>>,
    pub ignore_eos: bool,
    pub others: &'r Map<String, Value>,
}

/// Most texts that end an answer, and most bytes of one.
const STOPS: (usize, usize) = (16, 1024);

impl Raw<'_> {
    /// Checks them.
    ///
    /// # Errors
    /// The first that cannot be honoured.
    pub fn check(&self, app: &App) -> Result<Settings, ApiError> {
        known(self.others)?;
        let served = &app.served;
        if let Some(model) = self.model.filter(|model| !served.is_called(model)) {
            return Err(ApiError::model(model, &served.name));
        }
        if self.stream_options.is_some() && !self.stream {
            return Err(ApiError::parameter(
                "stream_options",
                "stream_options is for streams only: set stream to true",
            ));
        }
        let choices = whole("n", self.n, 1, app.config.choices as u64)?.unwrap_or(1) as usize;
        let limit = whole("max_tokens", self.max_tokens, 1, u64::MAX)?;
        let sampling = self.sampling(&served.sampling)?;
        // Who gives a seed, or wants the most probable token, wants the same text again.
        let again = self.seed.is_some() || sampling.temperature <= 0.0;
        Ok(Settings {
            sampling,
            reuse: if again { Reuse::Exact } else { Reuse::Any },
            bias: bias(self.logit_bias, served.tokenizer.n_tokens())?,
            choices,
            limit: limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            stop: stops(self.stop)?,
            endless: self.ignore_eos,
            stream: self.stream,
            include_usage: self.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
            timings: self.timings,
        })
    }
    fn sampling(&self, base: &SamplingParams) -> Result<SamplingParams, ApiError> {
        let mut p = base.clone();
        if let Some(temperature) = number("temperature", self.temperature, 0.0, 2.0)? {
            p.temperature = temperature;
        }
        if let Some(top_p) = number("top_p", self.top_p, 0.0, 1.0)? {
            // 0 is the most probable token alone.
            p.top_p = top_p.max(f32::MIN_POSITIVE);
        }
        if let Some(min_p) = number("min_p", self.min_p, 0.0, 1.0)? {
            p.min_p = min_p;
        }
        if let Some(penalty) = number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)? {
            p.frequency_penalty = penalty;
        }
        if let Some(penalty) = number("presence_penalty", self.presence_penalty, -2.0, 2.0)? {
            p.presence_penalty = penalty;
        }
        if let Some(penalty) = number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)? {
            p.repeat_penalty = penalty;
        }
        match self.top_k {
            Some(k) if k < -1 => return Err(ApiError::parameter("top_k", "top_k must be at least −1")),
            Some(k) => p.top_k = usize::try_from(k).unwrap_or(0),
            None => {}
        }
        match self.repeat_last_n {
            Some(n) if n < -1 => return Err(ApiError::parameter("repeat_last_n", "repeat_last_n must be at least −1")),
            Some(n) => p.penalty_last_n = usize::try_from(n).unwrap_or(usize::MAX),
            None => {}
        }
        p.seed = self.seed.map_or_else(any_seed, |seed| seed as u64);
        p.validate().map_err(|error| ApiError::body(error.to_string()))?;
        Ok(p)
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
const ONLY: &[(&str, &[&str])] = &[
    ("modalities", &["[\"text\"]"]),
    ("verbosity", &["\"medium\""]),
    ("prediction", &[]),
    ("audio", &[]),
    ("web_search_options", &[]),
];

/// Refuses the parameters that nobody knows, lest a slip of the pen goes unnoticed, and those that cannot be honoured.
fn known(others: &Map<String, Value>) -> Result<(), ApiError> {
    let is_known = |name: &&str| IGNORED.iter().any(|row| row.0 == *name) || ONLY.iter().any(|row| row.0 == *name);
    let unknown: Vec<&str> = others.keys().map(String::as_str).filter(|name| !is_known(name)).collect();
    if !unknown.is_empty() {
        return Err(ApiError::unknown(&unknown));
    }
    let refused = ONLY.iter().find(|(name, values)| {
        others.get(*name).is_some_and(|value| !value.is_null() && !values.contains(&value.to_string().as_str()))
    });
    match refused {
        None => Ok(()),
        Some((name, [])) => Err(ApiError::parameter(*name, format!("{name} is not possible here"))),
        Some((name, values)) => {
            Err(ApiError::parameter(*name, format!("{name} can only be {} here", values.join(" or "))))
        }
    }
}

fn any_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

/// A number within bounds.
fn number(name: &str, value: Option<f64>, least: f64, most: f64) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(ApiError::parameter(name, format!("{name} is {value}; it must be from {least} to {most}")))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

/// A whole number within bounds.
fn whole(name: &str, value: Option<u64>, least: u64, most: u64) -> Result<Option<u64>, ApiError> {
    match value {
        Some(value) if value < least => {
            Err(ApiError::parameter(name, format!("{name} is {value}; it must be at least {least}")))
        }
        Some(value) if value > most => {
            Err(ApiError::parameter(name, format!("{name} is {value}; it may be at most {most}")))
        }
        value => Ok(value),
    }
}

fn stops(stop: Option<&Texts>) -> Result<Vec<String>, ApiError> {
    let texts = match stop {
        None => return Ok(Vec::new()),
        Some(Texts::One(text)) => vec![text.clone()],
        Some(Texts::Many(texts)) => texts.clone(),
    };
    let (many, long) = STOPS;
    if texts.len() > many || texts.iter().any(|text| text.len() > long) {
        let message = format!("stop may have at most {many} texts of at most {long} bytes");
        return Err(ApiError::parameter("stop", message));
    }
    Ok(texts)
}

fn bias(bias: Option<&Map<String, Value>>, tokens: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let entry = |(key, value): (&String, &Value)| {
        // One key a token, so that there are no more of them than tokens: "7", and not "007" or "+7" besides.
        let plain = |token: &u32| (*token as usize) < tokens && token.to_string() == *key;
        let token = key.parse().ok().filter(plain);
        let value = value.as_f64().filter(|value| (-100.0..=100.0).contains(value));
        token.zip(value).map(|(token, value)| (token, value as f32))
    };
    let checked: Option<Vec<_>> = bias.into_iter().flatten().map(entry).collect();
    checked.ok_or_else(|| {
        ApiError::parameter("logit_bias", "logit_bias must map ids of tokens to numbers from −100 to 100")
    })
}
