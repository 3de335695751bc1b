//! What is asked of the engine's thread.

use crate::core::channel::Sender;
use crate::core::constraint::mask::Constraint;
use crate::core::event::{Event, Usage};
use crate::core::model::Served;
use crate::core::models::policy::Stay;
use crate::core::queue::Waiting;
use gristmill_llm::sampling::SamplingParams;
use gristmill_llm::sched::SequenceOptions;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// A request, checked: nothing in it can be refused any more.
pub struct Job {
    /// Who asks.
    pub client: IpAddr,
    /// When it was asked.
    pub asked: Instant,
    /// What is to be made of every prompt.
    pub task: Task,
    /// How its model reads and writes: as its prompts were written.
    pub served: Arc<Served>,
    /// What its sequences guarantee.
    pub options: SequenceOptions,
    /// The prompts; answers leave room for a token.
    pub prompts: Vec<Vec<u32>>,
    /// How many of them were answered.
    pub answered: usize,
    /// What that took.
    pub usage: Usage,
    /// How long the model stays after it, where whoever asks says so.
    pub stay: Option<Stay>,
    /// Where to tell it. Once the other side is gone, or too far behind, nobody waits for the answer.
    pub events: Arc<Sender>,
}

/// What is to be made of a prompt.
pub enum Task {
    /// Answers.
    Answers(Arc<Answers>),
    /// The mean of its hidden rows.
    Embedding,
    /// Nothing: whoever asks wants to know that the model is there.
    Nothing,
}

/// Answers to a prompt.
pub struct Answers {
    /// How tokens are chosen; each answer has the next seed.
    pub sampling: SamplingParams,
    /// Added to the logits of these tokens.
    pub bias: Vec<(u32, f32)>,
    /// What every answer must look like.
    pub constraint: Option<Constraint>,
    /// How many.
    pub choices: usize,
    /// Most tokens of each.
    pub limit: usize,
    /// Most bytes of each, about, with its probabilities as JSON; it ends where they are used up. None for any number.
    pub room: Option<usize>,
    /// Texts that end an answer, and are not part of it.
    pub stop: Vec<String>,
    /// Go on where the model would end?
    pub ignore_eos: bool,
    /// Show the special tokens that structure a reply?
    pub markers: bool,
    /// Tell the probability of every token, and of so many others?
    pub logprobs: Option<usize>,
    /// Likewise of the prompt's?
    pub prompt_logprobs: Option<usize>,
    /// Tell text as it comes, or only at the end?
    pub stream: bool,
}

impl Waiting for Job {
    fn client(&self) -> IpAddr {
        self.client
    }
    fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }
    fn waits_behind(&self, others: usize) {
        // Whoever has begun to be answered knows.
        if self.answered == 0 {
            let _ = self.events.send(Event::Waiting(others));
        }
    }
}
