//! Tokenised requests for the model's thread.

use crate::core::balance::{ANSWER_TOKENS, Demand};
use crate::core::channel::Sender;
use crate::core::constraint::mask::Constraint;
use crate::core::event::{Event, Usage};
use crate::core::model::Served;
use crate::core::models::policy::KeepAlive;
use crate::core::queue::Waiting;
use gristmill_llm::arch::Options;
use gristmill_llm::pooling::PooledRows;
use gristmill_llm::sampling::SamplingParams;
use gristmill_llm::sched::{SequenceOptions, prefix_hashes};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// A request that was checked and tokenised: queued, or running.
pub struct EngineRequest {
    /// The client's address.
    pub client: IpAddr,
    /// Time at which the request was received.
    pub received: Instant,
    /// What each prompt is run for: generation, pooling, or loading alone.
    pub task: Task,
    /// Tokenizer, template and defaults of the model for which the prompts were tokenised.
    pub served: Arc<Served>,
    /// Guarantees of its sequences, such as batch invariance.
    pub options: SequenceOptions,
    /// Token ids of each prompt; a prompt for generation leaves room for at least one token in the
    /// context.
    pub prompts: Vec<Vec<u32>>,
    /// Hash of each whole page of the next prompt, if replicas are chosen by it.
    pub prefix: Vec<u64>,
    /// Number of finished prompts.
    pub answered: usize,
    /// Usage of the finished prompts.
    pub usage: Usage,
    /// Keep-alive that the request sets for the model; `None` leaves it unchanged.
    pub stay: Option<KeepAlive>,
    /// Channel to the client; closed once the client has disconnected or reads too slowly.
    pub events: Arc<Sender>,
}

impl EngineRequest {
    /// Returns the tokens of the next prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.prompts[self.answered]
    }
    /// Returns the tokens of each prompt that is not finished.
    pub fn rest(&self) -> &[Vec<u32>] {
        &self.prompts[self.answered..]
    }
    /// Hashes the next prompt, by which one of several replicas is chosen.
    pub fn hash_prefix(&mut self) {
        let prompt = self.prompts.get(self.answered);
        self.prefix = prompt.map_or_else(Vec::new, |prompt| {
            prefix_hashes(prompt, &self.options.adapters)
        });
    }
}

impl GenerationParams {
    /// Returns the tokens that a choice is expected to have after its first `done`.
    pub fn expected_tokens(&self, done: usize) -> usize {
        self.limit.saturating_sub(done).min(ANSWER_TOKENS)
    }
}

/// Computation that a request needs for each prompt.
pub enum Task {
    /// Generates one or more choices.
    Generate(Arc<GenerationParams>),
    /// Returns the pooled hidden rows of the prompt: an embedding, or a score.
    Pool,
    /// Computes nothing; the request only loads the model.
    Load,
}

/// Bound of the reasoning of a reply.
pub struct ReasoningBound {
    /// Maximum tokens of it; `usize::MAX` without a limit.
    pub tokens: usize,
    /// Whether the prompt has opened reasoning.
    pub begun: bool,
    /// Tokens that close it.
    pub closing: Vec<u32>,
}

/// Parameters of generating the choices of a prompt.
pub struct GenerationParams {
    /// Sampling parameters; choice `n` adds `n` to the seed.
    pub sampling: SamplingParams,
    /// Bias added to the logits of these tokens.
    pub bias: Vec<(u32, f32)>,
    /// Grammar constraint of each choice.
    pub constraint: Option<Constraint>,
    /// Bound of the reasoning of each choice of a conversation.
    pub reasoning: Option<ReasoningBound>,
    /// Number of choices for each prompt.
    pub choices: usize,
    /// Maximum tokens of each choice.
    pub limit: usize,
    /// Approximate maximum bytes of each choice, with its log-probabilities as JSON; the choice is
    /// cut off there. `None` is unlimited.
    pub room: Option<usize>,
    /// Strings that end a choice and are removed from its text.
    pub stop: Vec<String>,
    /// Tokens that end a choice, besides those that end a sequence.
    pub stop_tokens: Vec<u32>,
    /// Whether generation continues past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Whether the text includes the special tokens that structure a reply.
    pub markers: bool,
    /// Number of alternatives reported with each token; `None` reports no log-probabilities.
    pub logprobs: Option<usize>,
    /// Whether each token is reported, also without log-probabilities.
    pub token_ids: bool,
    /// Number of alternatives reported with each prompt token; `None` reports no log-probabilities
    /// of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// Whether text is sent as it is generated, or at the end only.
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
        // After its first prompt a request is no longer waiting from the client's view.
        if self.answered == 0 {
            let _ = self.events.send(Event::Waiting(others));
        }
    }
    fn demand(&self) -> Demand<'_> {
        let (answer, is_exclusive) = match &self.task {
            Task::Generate(params) => (
                params.choices * params.expected_tokens(0),
                params.prompt_logprobs.is_some(),
            ),
            Task::Pool => (0, self.served.pooling.rows() != PooledRows::Last),
            Task::Load => (0, true),
        };
        Demand {
            prefix: &self.prefix,
            page: Options::PAGE,
            prompt: self.prompts.get(self.answered).map_or(0, Vec::len),
            answer,
            is_exclusive,
        }
    }
}
