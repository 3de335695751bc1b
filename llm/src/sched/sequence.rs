//! A sequence: its tokens, its progress, and its pages.

use super::prefix_node::PrefixNode;
use super::reuse::Reuse;
use super::sliding_window_pool::WindowPages;
use crate::arch::AdapterScales;

/// Identifier of a sequence, in order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SequenceId(pub(super) u64);

/// Guarantees for the steps of a sequence.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SequenceOptions {
    /// Which rows of the prefix cache it may reuse; only [`Reuse::Exact`] gives the same text
    /// for the same request.
    pub reuse: Reuse,
    /// Whether its logits have the same bits whatever else is in the batch; it then
    /// reuses exact rows only.
    pub batch_invariant: bool,
    /// Factors of the model's adapters.
    pub adapters: AdapterScales,
    /// Whether drafts may run for it, if the batcher has any.
    pub speculates: bool,
    /// Whether the hidden row of its last prompt token is read in place of logits, which must not
    /// be used then: see [`Batcher::hidden_row`].
    ///
    /// [`Batcher::hidden_row`]: super::Batcher::hidden_row
    pub hidden: bool,
}

impl Default for SequenceOptions {
    fn default() -> SequenceOptions {
        SequenceOptions {
            reuse: Reuse::Any,
            batch_invariant: false,
            adapters: AdapterScales::default(),
            speculates: true,
            hidden: false,
        }
    }
}

/// A sequence of tokens. Identifiers are in the order of arrival.
#[derive(Debug)]
pub(super) struct Sequence {
    pub id: SequenceId,
    /// Tokens of the prompt, then the generated ones.
    pub tokens: Vec<u32>,
    /// Number of prompt tokens.
    pub prompt: usize,
    /// Number of leading tokens with rows in its pages.
    pub computed: usize,
    /// Number of leading rows that depend on the tokens alone: see [`Reuse`].
    pub exact: usize,
    /// Which rows of the prefix cache it reuses; with exact ones, recomputed rows
    /// equal the earlier ones.
    pub reuse: Reuse,
    /// Whether its decode steps run the kernels of the largest batch.
    pub batch_invariant: bool,
    /// Factors of the model's adapters. Rows of other factors are other rows.
    pub adapters: AdapterScales,
    /// Whether drafts may run for it.
    pub speculates: bool,
    /// Whether the hidden row of its last token is read.
    pub hidden: bool,
    /// Whether blocks of its prompt run in exact chunks.
    pub exact_blocks: bool,
    pub pages: Vec<u32>,
    /// Its pages of the window pool.
    pub windows: WindowPages,
    /// Its row of recurrent states, while it runs and the model has any.
    pub state: Option<u32>,
    /// Leading tokens known to the prefix tree at admission, including those without window pages
    /// or a state snapshot.
    pub matched: usize,
    pub node: PrefixNode,
    /// Tokens reused at the first admission.
    pub reused: Option<usize>,
    /// Turn of its last prefill chunk; the sequence with the lowest is next.
    pub turn: u64,
}

impl Sequence {
    /// Returns whether its next token runs as a decode row.
    pub fn decodes(&self) -> bool {
        match self.reuse {
            // Tokens after the prompt were computed one at a time, and are recomputed that way.
            Reuse::Exact => self.computed >= self.prompt && self.computed < self.tokens.len(),
            Reuse::Any => self.computed >= self.prompt && self.computed + 1 == self.tokens.len(),
        }
    }
    /// Returns the end of the tokens that run in prefill chunks.
    pub fn prefill_end(&self) -> usize {
        match self.reuse {
            Reuse::Exact => self.prompt,
            Reuse::Any => self.tokens.len(),
        }
    }
}
