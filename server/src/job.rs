//! What is asked of the engine's thread.

use crate::channel::Sender;
use crate::constraint::Constraint;
use crate::queue::Waiting;
use gristmill_llm::prefix::Reuse;
use gristmill_llm::sampling::SamplingParams;
use std::net::IpAddr;
use std::time::Instant;

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
