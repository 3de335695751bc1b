//! What is asked of the engine's thread, and what it tells.

use crate::channel::Sender;
use crate::constraint::Constraint;
use crate::error::ApiError;
use crate::queue::Waiting;
use gristmill_llm::prefix::Reuse;
use gristmill_llm::sampling::SamplingParams;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A request, checked: nothing in it can be refused any more.
pub struct Job {
    /// Who asks.
    pub client: IpAddr,
    /// When it was asked.
    pub asked: Instant,
    /// The prompt; it leaves room for a token.
    pub prompt: Vec<u32>,
    /// Which earlier work may be reused.
    pub reuse: Reuse,
    /// How tokens are chosen; each answer has the next seed.
    pub sampling: SamplingParams,
    /// Added to the logits of these tokens.
    pub bias: Vec<(u32, f32)>,
    /// What every answer must look like.
    pub constraint: Option<Constraint>,
    /// Answers.
    pub choices: usize,
    /// Most tokens of each.
    pub limit: usize,
    /// Most bytes of each, about, with its probabilities as JSON; it ends where they are used up. None for any number.
    pub room: Option<usize>,
    /// Texts that end an answer, and are not part of it.
    pub stop: Vec<String>,
    /// Go on where the model would end?
    pub endless: bool,
    /// Show the special tokens that structure a reply?
    pub markers: bool,
    /// Tell the probability of every token, and of so many others?
    pub logprobs: Option<usize>,
    /// Tell text as it comes, or only at the end?
    pub stream: bool,
    /// Where to tell it. Once the other side is gone, or too far behind, nobody waits for the answer.
    pub events: Sender,
}

impl Waiting for Job {
    fn client(&self) -> IpAddr {
        self.client
    }
    fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }
}

/// What the engine's thread tells.
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
