//! Sampling flags.

use crate::failure::{Failure, Result};
use crate::model::{Model, warn};
use clap::Args;
use gristmill_llm::language;
use gristmill_llm::sampling::{Sampler, SamplingParams};

/// Sampling parameters; one that is not given comes from the model file, else from the defaults.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct Sampling {
    /// Temperature; 0 for greedy decoding [default: 0.8]
    #[arg(
        long, alias = "temperature", value_name = "T", value_parser = temperature,
        allow_negative_numbers = true
    )]
    temp: Option<f32>,
    /// Top-k sampling; 0 or -1 disables it [default: 40]
    #[arg(long, value_name = "K", value_parser = count, allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Top-p (nucleus) sampling; 1 disables it [default: 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Min-p sampling: minimum probability relative to the most probable token; 0 disables it
    /// [default: 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Repetition penalty: divides the logits of recent tokens; 1 disables it [default: 1]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
    /// Number of recent tokens that the penalties consider; -1 for all [default: 64]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    repeat_last_n: Option<usize>,
    /// Frequency penalty, per occurrence among the recent tokens; 0 disables it [default: 0]
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Presence penalty, once per distinct recent token; 0 disables it [default: 0]
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Random seed; -1 for a different one each time [default: -1]
    #[arg(short, long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    seed: Option<Seed>,
}

#[derive(Clone, Copy, Debug)]
enum Seed {
    Any,
    Number(u64),
}

fn seed(text: &str) -> std::result::Result<Seed, String> {
    match text {
        "-1" => Ok(Seed::Any),
        text => text.parse().map(Seed::Number).map_err(|_| {
            "a seed is a non-negative integer, or -1 for a different one each time".into()
        }),
    }
}

/// Parses a number of tokens; -1 means all.
pub fn count(text: &str) -> std::result::Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        text => text
            .parse()
            .map_err(|_| "it must be a non-negative integer, or -1 for no limit".into()),
    }
}

fn temperature(text: &str) -> std::result::Result<f32, String> {
    let valid = text
        .parse()
        .ok()
        .filter(|temperature: &f32| *temperature >= 0.0 && temperature.is_finite());
    valid.ok_or_else(|| "a temperature is a non-negative number, and 0 is greedy decoding".into())
}

impl Sampling {
    /// Refuses values that no model makes valid, before anything is loaded.
    pub fn check(&self) -> Result {
        self.over(SamplingParams::default()).map(drop)
    }
    /// Returns a sampler with these flags over the model file's parameters.
    pub fn sampler(&self, model: &Model) -> Result<Sampler> {
        let (params, ignored) = language::sampling(model.file.metadata());
        warn(&ignored);
        Ok(Sampler::new(self.over(params)?)?)
    }
    fn over(&self, base: SamplingParams) -> Result<SamplingParams> {
        let params = SamplingParams {
            temperature: self.temp.unwrap_or(base.temperature),
            // The sampler disables top-k at 0.
            top_k: self
                .top_k
                .map_or(base.top_k, |k| if k == usize::MAX { 0 } else { k }),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            penalty_last_n: self.repeat_last_n.unwrap_or(base.penalty_last_n),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            seed: match self.seed {
                Some(Seed::Number(seed)) => seed,
                Some(Seed::Any) | None => any_seed(),
            },
        };
        match params.validate() {
            Ok(()) => Ok(params),
            Err(error) => Err(Failure::usage(&error, error.hint().unwrap_or_default())),
        }
    }
}

/// Returns a random seed of at most six digits, short enough to type again.
fn any_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() % 1_000_000
}
