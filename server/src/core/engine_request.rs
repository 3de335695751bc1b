//! Tokenised requests for the model's thread.

use crate::core::channel::Sender;
use crate::core::constraint::mask::Constraint;
use crate::core::event::{Event, Usage};
use crate::core::model::Served;
use crate::core::models::policy::KeepAlive;
use crate::core::queue::Waiting;
use gristmill_llm::sampling::SamplingParams;
use gristmill_llm::sched::SequenceOptions;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// A request that was checked and tokenised: queued, or running.
pub struct EngineRequest {
    /// The address of its client.
    pub client: IpAddr,
    /// When it was received.
    pub received: Instant,
    /// What each prompt is run for.
    pub task: Task,
    /// How its model reads and writes, as its prompts were written.
    pub served: Arc<Served>,
    /// What its sequences guarantee.
    pub options: SequenceOptions,
    /// Its prompts; those of generation leave room for a token.
    pub prompts: Vec<Vec<u32>>,
    /// How many of them are finished.
    pub answered: usize,
    /// Usage of those.
    pub usage: Usage,
    /// How long the model stays loaded after it, where the request says.
    pub stay: Option<KeepAlive>,
    /// The channel to its client; closed once that is cancelled or too far behind.
    pub events: Arc<Sender>,
}

impl EngineRequest {
    /// Returns the tokens of the next prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.prompts[self.answered]
    }
}

/// What a prompt is run for.
pub enum Task {
    /// Generation.
    Generate(Arc<GenerationParams>),
    /// The mean of its hidden rows.
    Embed,
    /// Nothing: the request only has the model loaded.
    Load,
}

/// How the choices of a prompt are generated.
pub struct GenerationParams {
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

impl Waiting for EngineRequest {
    fn client(&self) -> IpAddr {
        self.client
    }
    fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }
    fn report_position(&self, others: usize) {
        // Behind its first prompt a request is running for its client.
        if self.answered == 0 {
            let _ = self.events.send(Event::Waiting(others));
        }
    }
}
