//! The flags of sampling.

use crate::failure::{Failure, Result};
use crate::model::{Model, warn};
use clap::Args;
use gristmill_llm::language;
use gristmill_llm::sampling::{Sampler, SamplingParams};

/// How tokens are chosen. What is not given is what the model file recommends, or else the default.
#[derive(Args, Clone, Debug)]
pub struct Sampling {
    /// Temperature; 0 always takes the most probable token [default: 0.8]
    #[arg(long, value_name = "T", value_parser = temperature, allow_negative_numbers = true, help_heading = "Sampling")]
    temp: Option<f32>,
    /// Choose among the K most probable tokens; 0 or -1 for all [default: 40]
    #[arg(long, value_name = "K", value_parser = count, allow_negative_numbers = true, help_heading = "Sampling")]
    top_k: Option<usize>,
    /// Choose among the fewest tokens that have this probability together; 1 for all [default: 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true, help_heading = "Sampling")]
    top_p: Option<f32>,
    /// Leave out tokens below this fraction of the greatest probability; 0 for none [default: 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true, help_heading = "Sampling")]
    min_p: Option<f32>,
    /// Divide the logits of recent tokens by this; 1 is off [default: 1]
    #[arg(long, value_name = "R", allow_negative_numbers = true, help_heading = "Sampling")]
    repeat_penalty: Option<f32>,
    /// How many tokens count as recent; -1 for all [default: 64]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true, help_heading = "Sampling")]
    repeat_last_n: Option<usize>,
    /// Subtract this for each time a token is among the recent [default: 0]
    #[arg(long, value_name = "F", allow_negative_numbers = true, help_heading = "Sampling")]
    frequency_penalty: Option<f32>,
    /// Subtract this once if a token is among the recent [default: 0]
    #[arg(long, value_name = "F", allow_negative_numbers = true, help_heading = "Sampling")]
    presence_penalty: Option<f32>,
    /// Which random stream; the same seed gives the same text, -1 another each time [default: -1]
    #[arg(long, value_name = "N", value_parser = seed, allow_negative_numbers = true, help_heading = "Sampling")]
    seed: Option<Seed>,
}

/// A random stream.
#[derive(Clone, Copy, Debug)]
enum Seed {
    Any,
    Number(u64),
}

fn seed(text: &str) -> std::result::Result<Seed, String> {
    match text {
        "-1" => Ok(Seed::Any),
        text => text
            .parse()
            .map(Seed::Number)
            .map_err(|_| "a seed is a whole number from 0 on, or -1 for another each time".into()),
    }
}

/// A number of tokens; -1 is all of them.
pub fn count(text: &str) -> std::result::Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        text => text.parse().map_err(|_| "it must be a whole number from 0 on, or -1 for all".into()),
    }
}

fn temperature(text: &str) -> std::result::Result<f32, String> {
    let valid = text.parse().ok().filter(|temperature: &f32| *temperature >= 0.0 && temperature.is_finite());
    valid.ok_or_else(|| "a temperature is a number from 0 on, and 0 takes the most probable token".into())
}

impl Sampling {
    /// Refuses what no model can make valid, before anything is loaded.
    pub fn check(&self) -> Result {
        self.over(SamplingParams::default()).map(drop)
    }
    /// A sampler for that model.
    pub fn sampler(&self, model: &Model) -> Result<Sampler> {
        let (params, ignored) = language::sampling(model.file.metadata());
        warn(&ignored);
        Ok(Sampler::new(self.over(params)?)?)
    }
    fn over(&self, base: SamplingParams) -> Result<SamplingParams> {
        let params = SamplingParams {
            temperature: self.temp.unwrap_or(base.temperature),
            // All of them are no limit.
            top_k: self.top_k.map_or(base.top_k, |k| if k == usize::MAX { 0 } else { k }),
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

/// A seed that is short enough to type again.
fn any_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() % 1_000_000
}
