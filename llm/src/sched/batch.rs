//! The scheduler's configuration, the batch of its next step, and its load.

use super::pages::Swap;
use super::sequence::SequenceId;
use crate::engine::{PageCopy, Pages, StateCopy};
use std::ops::Range;

/// Sizes and abilities of the engine that a scheduler plans for.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerConfig {
    /// Pages of the pool. They hold the longest sequence at least.
    pub pages: usize,
    /// Positions of a page.
    pub page_size: usize,
    /// Pages of the pool of windows, if there is one, and positions that a token sees of them.
    pub window_pool: Option<[usize; 2]>,
    /// Rows of states, more than sequences of a step; 0 where the model keeps none.
    pub state_rows: usize,
    /// Pages that the host has room for besides, when they leave the pool; none where there is a pool of windows or there are states.
    pub host_slots: usize,
    /// Most sequences of a step.
    pub max_sequences: usize,
    /// Most tokens of a piece of a prompt.
    pub max_chunk: usize,
    /// Can a piece and tokens of answers be one step?
    pub mixed: bool,
}

/// A part of one sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrefillChunk {
    /// Whose.
    pub sequence: SequenceId,
    /// Which tokens.
    pub tokens: Range<usize>,
    /// In the class of chunks, whatever their number, so that their rows are exact?
    pub exact: bool,
    /// Are they the last, so that a token is to be chosen?
    pub needs_logits: bool,
}

/// One token of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decode {
    /// Whose.
    pub sequence: SequenceId,
    /// Where it stands.
    pub position: usize,
    /// Is it the last, so that a token is to be chosen?
    pub needs_logits: bool,
}

/// What is to be done next: copies, then the piece and the tokens that answers go on with, in one step or in two.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// Pages that go to the host or come back, before anything else.
    pub swaps: Vec<Swap>,
    /// Pages to be copied.
    pub copies: Vec<PageCopy>,
    /// Rows of states to be copied.
    pub states: Vec<StateCopy>,
    /// One token each of several sequences, sorted by sequence.
    pub decodes: Vec<Decode>,
    /// A piece of a prompt.
    pub chunk: Option<PrefillChunk>,
    /// The row of states of its sequence, to be copied once it has run, as others may go on there.
    pub snapshot: Option<StateCopy>,
    /// Whether a decoding sequence of it is batch-invariant: it runs the kernels of the largest batch.
    pub batch_invariant: bool,
    /// Are the piece and the tokens of the others one step? Not where something of it must be the same to the bit whoever is beside it.
    pub mixed: bool,
}

impl Batch {
    /// Is there nothing to do?
    pub fn is_empty(&self) -> bool {
        self.decodes.is_empty() && self.chunk.is_none() && self.swaps.is_empty()
    }
    /// Returns the row of a sequence among the decodes.
    pub fn row(&self, id: SequenceId) -> Option<usize> {
        self.decodes.binary_search_by_key(&id, |decode| decode.sequence).ok()
    }
    /// Those whose next token is to be chosen once it has run.
    pub fn sequences_with_logits(&self) -> impl Iterator<Item = SequenceId> {
        let decodes = self.decodes.iter().filter(|d| d.needs_logits).map(|d| d.sequence);
        decodes.chain(self.chunk.iter().filter(|p| p.needs_logits).map(|p| p.sequence))
    }
}

/// Numbers for whoever watches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Sequences that have pages.
    pub running: usize,
    /// Those that wait for some.
    pub waiting: usize,
    /// Pages that sequences have.
    pub pages: usize,
    /// Pages of the pool.
    pub total_pages: usize,
    /// Pages that nobody has and that hold what may be asked for again.
    pub cached_pages: usize,
    /// The same of the pool of windows.
    pub cached_window_pages: usize,
    /// The same of rows of states.
    pub cached_states: usize,
    /// Pages that lie with the host.
    pub host_pages: usize,
    /// Pages, pages of windows, rows of states and places of the host that are held while nobody is here, and so never come back: a fault. None where somebody is here, whose they may be.
    pub leaked: Option<usize>,
    /// Positions that sequences have computed.
    pub tokens: usize,
    /// How often one had to give its pages up.
    pub preempted: u64,
}

/// Pages of nobody's sequence.
#[derive(Debug)]
pub struct Borrowed {
    pub(super) pages: Vec<u32>,
    pub(super) windows: Vec<u32>,
    pub(super) state: Option<u32>,
}

impl Borrowed {
    /// Which they are.
    pub fn pages(&self) -> Pages<'_> {
        Pages { all: &self.pages, windows: &self.windows, state: self.state.unwrap_or(0) }
    }
}
