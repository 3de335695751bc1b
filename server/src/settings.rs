//! What requests of all kinds have in common, checked.

use gristmill_llm::prefix::Reuse;
use gristmill_llm::sampling::SamplingParams;

/// How tokens are chosen, when to stop, how to answer.
#[derive(Debug)]
pub struct Settings {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Which earlier work may be reused.
    pub reuse: Reuse,
    /// Added to logits.
    pub bias: Vec<(u32, f32)>,
    /// Answers.
    pub choices: usize,
    /// Most tokens of each, where somebody said.
    pub limit: Option<usize>,
    /// What ends them.
    pub stop: Vec<String>,
    /// Go on where the model would end?
    pub endless: bool,
    /// Tell text as it comes?
    pub stream: bool,
    /// End a stream with the numbers of tokens?
    pub include_usage: bool,
    /// Tell with every piece how fast it goes?
    pub timings: bool,
}
