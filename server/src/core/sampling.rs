//! Sampling parameters of a request.

use crate::core::adapters::AdapterChoice;
use crate::core::error::RequestError;
use gristmill_llm::sampling::SamplingParams;
use gristmill_llm::sched::{Reuse, SequenceOptions};
use gristmill_llm::tokenizer::Tokenizer;
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Tokens that a bias is added to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BiasKey {
    /// Id of a token, in decimal.
    Token(String),
    /// A text, which stands for all its tokens.
    Text(String),
}

/// Unchecked sampling parameters; the model's defaults replace absent ones. See [`SamplingParams`].
#[derive(Clone, Debug, Default)]
pub struct SamplingOptions {
    /// Seed of the sampler; random if absent.
    pub seed: Option<i64>,
    /// From 0 to 100.
    pub temperature: Option<f64>,
    /// From 0 to 1.
    pub top_p: Option<f64>,
    /// 0 and −1 keep all tokens.
    pub top_k: Option<i64>,
    /// From 0 to 1.
    pub min_p: Option<f64>,
    /// From −2 to 2.
    pub frequency_penalty: Option<f64>,
    /// From −2 to 2.
    pub presence_penalty: Option<f64>,
    /// From 0.01 to 100.
    pub repetition_penalty: Option<f64>,
    /// Number of recent tokens that penalties apply to; −1 is all of the context.
    pub repeat_last_n: Option<i64>,
    /// Biases added to the logits of tokens.
    pub logit_bias: Vec<(BiasKey, Value)>,
    /// Whether the text must not depend on other requests; absent, the server's default applies.
    pub batch_invariant: Option<bool>,
    /// Whether drafts may run for it, if the server runs any; absent, they may.
    pub speculate: Option<bool>,
    /// Adapters and their factors; absent, those that the model's name chooses.
    pub lora: Option<Vec<AdapterChoice>>,
}

impl SamplingOptions {
    /// Checks the parameters and fills absent ones from `base`.
    ///
    /// # Errors
    /// The first parameter that is out of range.
    pub fn resolve(&self, base: &SamplingParams) -> Result<SamplingParams, RequestError> {
        let mut p = base.clone();
        if let Some(temperature) = number("temperature", self.temperature, 0.0, 100.0)? {
            p.temperature = temperature;
        }
        if let Some(top_p) = number("top_p", self.top_p, 0.0, 1.0)? {
            // 0 keeps the most probable token only.
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
            Some(k) if k < -1 => {
                return Err(RequestError::parameter(
                    "top_k",
                    "top_k must be at least −1",
                ));
            }
            Some(k) => p.top_k = usize::try_from(k).unwrap_or(0),
            None => {}
        }
        match self.repeat_last_n {
            Some(n) if n < -1 => {
                return Err(RequestError::parameter(
                    "repeat_last_n",
                    "repeat_last_n must be at least −1",
                ));
            }
            Some(n) => p.penalty_last_n = usize::try_from(n).unwrap_or(usize::MAX),
            None => {}
        }
        p.seed = self.seed.map_or_else(any_seed, |seed| seed as u64);
        p.validate()
            .map_err(|error| RequestError::body(error.to_string()))?;
        Ok(p)
    }
    /// Returns the guarantees of its sequences. A seed reproduces the text of the request when it
    /// runs alone; batch invariance reproduces it under any load.
    pub fn sequence_options(&self, default_invariant: bool) -> SequenceOptions {
        let batch_invariant = self.batch_invariant.unwrap_or(default_invariant);
        let reuse = if batch_invariant || self.seed.is_some() {
            Reuse::Exact
        } else {
            Reuse::Any
        };
        SequenceOptions {
            reuse,
            batch_invariant,
            speculates: self.speculate.unwrap_or(true),
            ..SequenceOptions::default()
        }
    }
    /// Returns the logit bias of each token.
    ///
    /// # Errors
    /// When a key is not a token id, the texts are too long, or a value is out of range.
    pub fn bias(&self, tokenizer: &Tokenizer) -> Result<Vec<(u32, f32)>, RequestError> {
        let token = |key: &str| {
            // One spelling per token id, such as "7" but not "007" or "+7".
            let plain =
                |token: &u32| (*token as usize) < tokenizer.n_tokens() && token.to_string() == key;
            key.parse().ok().filter(plain)
        };
        let mut bytes = 0;
        let mut all = BTreeMap::new();
        for (key, value) in &self.logit_bias {
            let value = value
                .as_f64()
                .filter(|value| (-100.0..=100.0).contains(value))
                .ok_or_else(bad_bias)? as f32;
            match key {
                BiasKey::Token(key) => {
                    all.insert(token(key).ok_or_else(bad_bias)?, value);
                }
                BiasKey::Text(text) => {
                    bytes += text.len();
                    if bytes > MAX_BIAS_TEXT {
                        return Err(bad_bias());
                    }
                    let tokens = tokenizer.encode(text, false, false);
                    all.extend(tokens.into_iter().map(|token| (token, value)));
                }
            }
        }
        Ok(all.into_iter().collect())
    }
}

/// Maximum bytes of the texts that biases have as keys.
const MAX_BIAS_TEXT: usize = 64 << 10;

fn bad_bias() -> RequestError {
    let message = "logit_bias must map ids of tokens to numbers from −100 to 100";
    RequestError::parameter("logit_bias", message)
}

fn any_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Checks the range of a number.
fn number(
    name: &str,
    value: Option<f64>,
    least: f64,
    most: f64,
) -> Result<Option<f32>, RequestError> {
    match value {
        Some(value) if !(least..=most).contains(&value) => Err(RequestError::parameter(
            name,
            format!("{name} is {value}; it must be from {least} to {most}"),
        )),
        value => Ok(value.map(|value| value as f32)),
    }
}

/// Checks the range of an integer.
///
/// # Errors
/// When it is out of range.
pub fn whole(name: &str, value: u64, least: u64, most: u64) -> Result<u64, RequestError> {
    match value {
        value if value < least => Err(RequestError::parameter(
            name,
            format!("{name} is {value}; it must be at least {least}"),
        )),
        value if value > most => Err(RequestError::parameter(
            name,
            format!("{name} is {value}; it may be at most {most}"),
        )),
        value => Ok(value),
    }
}
