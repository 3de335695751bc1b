//! A sequence: its tokens, how far the model has run them, and where their rows lie.

use super::place::Place;
use super::window_pool::Held;
use crate::prefix::Reuse;

/// Which one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SequenceId(pub(super) u64);

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
    /// Of which the first so many depend on the tokens alone: see [`crate::prefix`].
    pub exact: usize,
    /// Does its text have to be the same whatever else runs? Then only exact rows are reused, and what is computed again is computed as it was.
    pub reuse: Reuse,
    /// Are blocks of its prompt run so that they are exact?
    pub blocks: bool,
    pub pages: Vec<u32>,
    /// What it has of the pool of windows.
    pub windows: Held,
    /// Its row of states, while it runs and the model keeps some.
    pub state: Option<u32>,
    /// So many of its first tokens were known when it was admitted, though of some the windows may have been gone, or no states known.
    pub known: usize,
    pub place: Place,
    /// Tokens that were found when it was first admitted.
    pub found: Option<usize>,
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
    pub fn pieces_end(&self) -> usize {
        match self.reuse {
            Reuse::Exact => self.prompt,
            Reuse::Any => self.tokens.len(),
        }
    }
}
