//! What the engine's thread tells.

use crate::core::error::RequestError;
use crate::core::loading::LoadStep;
use std::time::Duration;

/// One of it.
#[derive(Debug)]
pub enum Event {
    /// The request waits behind so many others.
    Waiting(usize),
    /// The model is being loaded first: what is done of it at the moment.
    Loading(LoadStep),
    /// So many tokens of a prompt have been run, of how many that have to be; between its pieces.
    Reading(usize, usize),
    /// A prompt has been run: what it took.
    Prompt(Usage),
    /// The prompt's tokens and how probable they were, before the answer of that number; in pieces.
    PromptLogprobs {
        /// Of which.
        choice: usize,
        /// They.
        tokens: Vec<Chosen>,
    },
    /// More of an answer.
    Delta(Delta),
    /// What the model makes of a prompt.
    Embedding {
        /// Of which.
        prompt: usize,
        /// A vector of length 1.
        values: Vec<f32>,
    },
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
    Failed(RequestError),
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
    /// The logarithm of its probability, by the model's logits alone; none of a token that nothing stands before.
    pub logprob: Option<f32>,
    /// The most probable ones with theirs, in descending order.
    pub top: Vec<(u32, f32)>,
}

/// Why an answer ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model or the grammar ended it.
    Stop,
    /// This text, which was to end it.
    StopText(String),
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

impl Usage {
    /// Together with that of another prompt.
    pub fn add(&mut self, more: &Usage) {
        self.prompt += more.prompt;
        self.cached += more.cached;
        self.answer += more.answer;
        self.prompt_time += more.prompt_time;
        self.answer_time += more.answer_time;
    }
}
