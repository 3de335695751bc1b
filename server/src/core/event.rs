//! Events from the engine's thread to the response of a request.

use crate::core::error::RequestError;
use crate::core::loading::LoadStep;
use std::time::Duration;

/// An event of one request.
#[derive(Debug)]
pub enum Event {
    /// Number of queued requests before this one; sent when it may have changed.
    Waiting(usize),
    /// The model is being loaded first; the current step.
    Loading(LoadStep),
    /// Prefill progress: prompt tokens computed, of those that the prefix cache does not have.
    Reading(usize, usize),
    /// A prompt has been prefilled; its usage so far.
    Prompt(Usage),
    /// The prompt's tokens with their log-probabilities, before the text of the choice.
    PromptLogprobs {
        /// Index of the choice.
        choice: usize,
        /// All tokens of the prompt.
        tokens: Vec<Chosen>,
    },
    /// More text of a choice.
    Delta(Delta),
    /// Pooled hidden rows of a prompt.
    Pooled {
        /// Index of the prompt.
        prompt: usize,
        /// Vector of Euclidean length 1, or one score from 0 to 1.
        values: Vec<f32>,
    },
    /// The end of a choice.
    Finish {
        /// Index of the choice.
        choice: usize,
        /// Why the choice ended.
        reason: Finish,
    },
    /// The end of the request, with its whole usage.
    End(Usage),
    /// The request failed; no events follow.
    Failed(RequestError),
}

/// More text of a choice.
#[derive(Debug, Default)]
pub struct Delta {
    /// Index of the choice.
    pub choice: usize,
    /// Text of whole characters.
    pub text: String,
    /// The tokens of the text, if they or their log-probabilities are requested.
    pub tokens: Vec<Chosen>,
    /// Number of tokens of the choice so far.
    pub so_far: usize,
    /// Number of tokens of reasoning among them; `None` if they are not counted.
    pub reasoning: Option<usize>,
    /// Generation time of those tokens.
    pub time: Duration,
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The token's id.
    pub token: u32,
    /// Natural logarithm of the probability from the unmodified logits; `None` for the first token
    /// of a prompt, and where log-probabilities are not requested.
    pub logprob: Option<f32>,
    /// The most probable tokens with their log-probabilities, in descending order.
    pub top: Vec<(u32, f32)>,
}

/// Reason why an answer ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model or the grammar ended it.
    Stop,
    /// It generated this stop string.
    StopText(String),
    /// It reached the token limit or the end of the context.
    Length,
}

/// Token counts and times of a request.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt: usize,
    /// Prompt tokens found in the prefix cache.
    pub cached: usize,
    /// Generated tokens of all choices.
    pub answer: usize,
    /// Tokens of them whose text is reasoning.
    pub reasoning: usize,
    /// Tokens that were run as drafts.
    pub drafted: usize,
    /// Those of them that were chosen.
    pub kept_drafts: usize,
    /// Time of the prefill.
    pub prompt_time: Duration,
    /// Time of the decode steps.
    pub answer_time: Duration,
}

impl Usage {
    /// Adds the usage of another prompt.
    pub fn add(&mut self, more: &Usage) {
        self.prompt += more.prompt;
        self.cached += more.cached;
        self.answer += more.answer;
        self.reasoning += more.reasoning;
        self.drafted += more.drafted;
        self.kept_drafts += more.kept_drafts;
        self.prompt_time += more.prompt_time;
        self.answer_time += more.answer_time;
    }
}
