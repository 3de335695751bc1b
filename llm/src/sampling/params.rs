//! Sampling parameters and errors.

/// Parameters of the sampling chain. The defaults are llama.cpp's.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits of the candidates that remain; zero or less means greedy. Default 0.8.
    pub temperature: f32,
    /// Keep the `top_k` largest logits; 0 keeps all. Default 40.
    pub top_k: usize,
    /// Keep the fewest most probable candidates that together have this probability; 1 keeps
    /// all. Default 0.95.
    pub top_p: f32,
    /// Keep candidates with at least this fraction of the largest probability; 0 keeps all. Default
    /// 0.05 (GLM-4.7 wants 0.01).
    pub min_p: f32,
    /// For tokens among the last [`penalty_last_n`](Self::penalty_last_n): positive logits are
    /// divided by it, others multiplied (Keskar et al. 2019). 1 is off, the default.
    pub repeat_penalty: f32,
    /// Subtracted from the logit for each time the token occurs there. Default 0.
    pub frequency_penalty: f32,
    /// Subtracted once if it occurs there at all. Default 0.
    pub presence_penalty: f32,
    /// Number of last tokens that are penalised; 0 turns penalties off, `usize::MAX` covers the
    /// whole history. Default 64.
    pub penalty_last_n: usize,
    /// Seed of the random numbers. Default 0: programs that need variety choose one
    /// themselves and report it.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_last_n: 64,
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Returns parameters that always choose the most probable token.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Checks the ranges of all parameters.
    ///
    /// # Errors
    /// The first parameter that is out of range or not a number.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let finite = |v: f32| v.is_finite();
        for (name, value, valid, range) in [
            (
                "temperature",
                self.temperature,
                finite(self.temperature),
                "a finite number",
            ),
            (
                "top_p",
                self.top_p,
                self.top_p > 0.0 && self.top_p <= 1.0,
                "above 0 and at most 1",
            ),
            (
                "min_p",
                self.min_p,
                (0.0..=1.0).contains(&self.min_p),
                "from 0 to 1",
            ),
            (
                "repeat_penalty",
                self.repeat_penalty,
                self.repeat_penalty > 0.0 && finite(self.repeat_penalty),
                "a finite number above 0",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                finite(self.frequency_penalty),
                "a finite number",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                finite(self.presence_penalty),
                "a finite number",
            ),
        ] {
            if !valid {
                return Err(SamplingError::Parameter { name, value, range });
            }
        }
        Ok(())
    }

    /// Returns the penalised logit of a token that occurs `count` times in the recent history:
    /// CTRL's repetition penalty, then frequency and presence. A masked token (−∞) stays masked.
    pub(super) fn penalised(&self, logit: f32, count: u32) -> f32 {
        if !logit.is_finite() {
            return logit;
        }
        let repeated = if logit <= 0.0 {
            logit * self.repeat_penalty
        } else {
            logit / self.repeat_penalty
        };
        repeated - (count as f32 * self.frequency_penalty + self.presence_penalty)
    }

    /// Returns whether the penalties change anything.
    pub(super) fn has_penalties(&self) -> bool {
        self.penalty_last_n > 0
            && (self.repeat_penalty != 1.0
                || self.frequency_penalty != 0.0
                || self.presence_penalty != 0.0)
    }
}

/// Reason why no token could be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A parameter is out of range.
    #[error("{name} is {value}; it must be {range}")]
    Parameter {
        /// Name of the parameter.
        name: &'static str,
        /// Value that was given.
        value: f32,
        /// Description of the valid range.
        range: &'static str,
    },
    /// A logit is NaN or +∞: the model computed garbage, or a penalty overflowed.
    #[error("the logit of token {token} is {value}")]
    BadLogit {
        /// The first such token.
        token: usize,
        /// The logit of that token.
        value: f32,
    },
    /// There are no logits, or all are −∞.
    #[error("none of {logits} tokens can be chosen")]
    NoCandidate {
        /// Number of logits in the row.
        logits: usize,
    },
}

/// Hint for non-finite logits.
pub(crate) const GARBAGE: &str =
    "the model file may be damaged, or a kernel wrong: try another device or --exact";

impl SamplingError {
    /// Returns a suggestion for the user, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Parameter { name, .. } => Some(format!("leave {name} out to use its default")),
            Self::BadLogit { .. } => Some(GARBAGE.into()),
            Self::NoCandidate { .. } => Some("a constraint excludes every token".into()),
        }
    }
}
