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
    #[arg(long, value_name = "T", allow_negative_numbers = true, help_heading = "Sampling")]
    temp: Option<f32>,
    /// Choose among the K most probable tokens; 0 for all [default: 40]
    #[arg(long, value_name = "K", help_heading = "Sampling")]
    top_k: Option<usize>,
    /// Choose among the fewest tokens that have this probability together; 1 for all [default: 0.95]
    #[arg(long, value_name = "P", help_heading = "Sampling")]
    top_p: Option<f32>,
    /// Leave out tokens below this fraction of the greatest probability; 0 for none [default: 0.05]
    #[arg(long, value_name = "P", help_heading = "Sampling")]
    min_p: Option<f32>,
    /// Divide the logits of recent tokens by this; 1 is off [default: 1]
    #[arg(long, value_name = "R", help_heading = "Sampling")]
    repeat_penalty: Option<f32>,
    /// How many tokens count as recent [default: 64]
    #[arg(long, value_name = "N", help_heading = "Sampling")]
    repeat_last_n: Option<usize>,
    /// Subtract this for each time a token is among the recent [default: 0]
    #[arg(long, value_name = "F", allow_negative_numbers = true, help_heading = "Sampling")]
    frequency_penalty: Option<f32>,
    /// Subtract this once if a token is among the recent [default: 0]
    #[arg(long, value_name = "F", allow_negative_numbers = true, help_heading = "Sampling")]
    presence_penalty: Option<f32>,
    /// Which random stream; the same seed gives the same text [default: another each time]
    #[arg(long, value_name = "N", help_heading = "Sampling")]
    seed: Option<u64>,
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
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            penalty_last_n: self.repeat_last_n.unwrap_or(base.penalty_last_n),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            seed: self.seed.unwrap_or_else(any_seed),
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
