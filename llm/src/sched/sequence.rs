//! A sequence: its tokens, how far the model has run them, and where their rows lie.

use super::prefix_node::PrefixNode;
use super::reuse::Reuse;
use super::sliding_window_pool::WindowPages;

/// Which one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SequenceId(pub(super) u64);

/// What the steps of a sequence have to guarantee.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequenceOptions {
    /// Which rows of the prefix cache it may reuse; [`Reuse::Exact`] repeats the text of the same request alone.
    pub reuse: Reuse,
    /// Whether its logits are the same bits whatever else is in the batch; it reuses exact rows alone then.
    pub batch_invariant: bool,
}

impl Default for SequenceOptions {
    fn default() -> SequenceOptions {
        SequenceOptions { reuse: Reuse::Any, batch_invariant: false }
    }
}

/// A sequence of tokens. Identifiers are in the order of arrival.
#[derive(Debug)]
pub(super) struct Sequence {
    pub id: SequenceId,
    /// The prompt, and what was chosen since.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// So many tokens have rows in its pages.
    pub computed: usize,
    /// Of which the first so many depend on the tokens alone: see [`Reuse`].
    pub exact: usize,
    /// Which rows of the prefix cache it reuses; with exact ones, recomputed rows are those of before.
    pub reuse: Reuse,
    /// Whether its decode steps run the kernels of the largest batch.
    pub batch_invariant: bool,
    /// Are blocks of its prompt run so that they are exact?
    pub exact_blocks: bool,
    pub pages: Vec<u32>,
    /// What it has of the pool of windows.
    pub windows: WindowPages,
    /// Its row of states, while it runs and the model keeps some.
    pub state: Option<u32>,
    /// So many of its first tokens were known when it was admitted, though of some the windows may have been gone, or no states known.
    pub matched: usize,
    pub node: PrefixNode,
    /// Tokens that were found when it was first admitted.
    pub reused: Option<usize>,
    /// When a piece of it was last run: the one that has waited for longest is next.
    pub turn: u64,
}

impl Sequence {
    /// Is one token left to be run, beside those of others?
    pub fn decodes(&self) -> bool {
        match self.reuse {
            // What came behind the prompt was computed a token at a time, and is again.
            Reuse::Exact => self.computed >= self.prompt && self.computed < self.tokens.len(),
            Reuse::Any => self.computed >= self.prompt && self.computed + 1 == self.tokens.len(),
        }
    }
    /// Behind the last token that a piece of it may have.
    pub fn prefill_end(&self) -> usize {
        match self.reuse {
            Reuse::Exact => self.prompt,
            Reuse::Any => self.tokens.len(),
        }
    }
}
