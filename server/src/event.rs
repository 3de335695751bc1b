//! What the engine's thread tells.

use crate::error::ApiError;
use std::time::Duration;

/// One of it.
#[derive(Debug)]
pub enum Event {
    /// More of an answer.
    Delta(Delta),
    /// The end of an answer.
    Finish {
        /// Which.
        choice: usize,
        /// Why.
        reason: Finish,
    },
    /// The end of all.
    End(Usage),
    /// It cannot go on.
    Failed(ApiError),
}

/// More of an answer.
#[derive(Debug, Default)]
pub struct Delta {
    /// Of which.
    pub choice: usize,
    /// Text; whole characters.
    pub text: String,
    /// The tokens of that text, where their probabilities were asked for.
    pub tokens: Vec<Chosen>,
    /// Tokens of the answer up to here.
    pub so_far: usize,
    /// Time they took.
    pub time: Duration,
}

/// A token, and how probable it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: u32,
    /// The logarithm of its probability, by the model's logits alone.
    pub logprob: f32,
    /// The most probable ones with theirs, in descending order.
    pub top: Vec<(u32, f32)>,
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model, a stop text or the grammar ended it.
    Stop,
    /// There was no room for more, or more was not asked for.
    Length,
}

/// What a request took.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// How many of them were found in the cache.
    pub cached: usize,
    /// Tokens of all answers.
    pub answer: usize,
    /// Time of the prompt.
    pub prompt_time: Duration,
    /// Time of the answers.
    pub answer_time: Duration,
}
