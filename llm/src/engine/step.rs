//! What a step runs, and what it returns.

use super::pages::Pages;
use crate::arch::Logits;
use crate::sampling::RowSampling;

/// One step of the model: a prefill chunk of one sequence, decode rows of others, or both.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<'a> {
    /// Neighbouring tokens of one sequence.
    pub chunk: Option<Chunk<'a>>,
    /// One token each of several sequences, none of them the chunk's.
    pub rows: &'a [DecodeRow<'a>],
    /// Runs the kernels of the largest batch, so that a row does not depend on the batch size.
    pub batch_invariant: bool,
    /// The rest of the pool holds finite numbers, so a step of one sequence may read neighbouring
    /// pages without a block table.
    pub contiguous: bool,
}

/// Neighbouring tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Their ids.
    pub tokens: &'a [u32],
    /// Position of the first.
    pub position: usize,
    /// The sequence's pages up to the last token.
    pub pages: Pages<'a>,
    /// Runs one kind of step whatever the number of tokens, so that cached rows depend on the
    /// tokens alone.
    pub exact: bool,
    /// Logits to compute: none, of the last token, or of all.
    pub logits: Logits,
}

/// A token of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct DecodeRow<'a> {
    /// Where its id is known.
    pub token: TokenSource,
    /// Its position.
    pub position: usize,
    /// The sequence's pages up to there. That of this position is no other row's.
    pub pages: Pages<'a>,
    /// How the device chooses the next token.
    pub sampling: RowSampling,
}

/// Where a token's id is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenSource {
    /// On the host.
    Token(u32),
    /// On the device: the token chosen for that row of the step started before.
    Row(usize),
}

impl TokenSource {
    /// The id, where the host knows it.
    pub(super) fn token(self) -> Option<u32> {
        if let TokenSource::Token(token) = self { Some(token) } else { None }
    }
}

/// What a step returned.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StepOutput {
    /// The token chosen after each row of logits, none where a logit is not finite or all are −∞:
    /// of the chunk's last token where decode rows are behind it, then of these.
    pub chosen: Vec<Option<u32>>,
}
