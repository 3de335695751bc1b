//! Input and output of a step.

use super::pages::Pages;
use crate::arch::Logits;
use crate::sampling::RowSampling;

/// One step of the model: a prefill chunk of one sequence, decode rows of others, or both.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<'a> {
    /// The prefill chunk: consecutive tokens of one sequence.
    pub chunk: Option<Chunk<'a>>,
    /// Decode rows: one token of each of several other sequences.
    pub rows: &'a [DecodeRow<'a>],
    /// Runs the kernels of the largest batch, so that the result of a row is independent
    /// of the batch size.
    pub batch_invariant: bool,
    /// Number of the chunk's last tokens that are drafts, with logits as well: recurrent states
    /// are left as they are before the drafts. `None` for other chunks.
    pub drafted: Option<usize>,
    /// All other rows of the pool are finite, so a step of one sequence may read consecutive pages
    /// without a block table.
    pub contiguous: bool,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Token ids, in order of position.
    pub tokens: &'a [u32],
    /// Position of the first token.
    pub position: usize,
    /// The sequence's pages up to the last token.
    pub pages: Pages<'a>,
    /// Uses one kind of step for any number of tokens, so that KV rows do not
    /// depend on chunk boundaries.
    pub exact: bool,
    /// Logits to compute: none, of the last token, or of all.
    pub logits: Logits,
    /// Fills the cache of the draft block as well, if there is one.
    pub fills_drafts: bool,
}

/// One decode token of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct DecodeRow<'a> {
    /// Source of the token id.
    pub token: TokenSource,
    /// Position of the token.
    pub position: usize,
    /// The sequence's pages up to that position. Other rows that share the page of this position
    /// are of the same sequence, at other positions: each sees those before it.
    pub pages: Pages<'a>,
    /// Sampling method and parameters for the next token.
    pub sampling: RowSampling,
}

/// Source of a token id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenSource {
    /// Id known on the host.
    Token(u32),
    /// Id chosen on the device for that row of the previous step.
    Row(usize),
}

impl TokenSource {
    /// Returns the id if the host knows it.
    pub(super) fn token(self) -> Option<u32> {
        if let TokenSource::Token(token) = self {
            Some(token)
        } else {
            None
        }
    }
}

/// Output of a step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StepOutput {
    /// The token chosen for each row of logits; `None` if a logit is not finite or all are −∞. In a
    /// mixed step the chunk's last token comes first, then the decode rows.
    pub chosen: Vec<Option<u32>>,
}
