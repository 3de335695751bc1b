//! The scheduler's configuration, its next batch, and its load.

use super::pages::Swap;
use super::sequence::SequenceId;
use crate::engine::{PageCopy, Pages, StateCopy};
use std::ops::Range;

/// Sizes and abilities of the engine that a scheduler plans for.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerConfig {
    /// Number of pages in the pool; enough for the longest sequence.
    pub pages: usize,
    /// Number of positions in a page.
    pub page_size: usize,
    /// Number of pages in the window pool and window length in positions, if there
    /// is a window pool.
    pub window_pool: Option<[usize; 2]>,
    /// Rows of recurrent states, more than sequences of a step; 0 if the model has none.
    pub state_rows: usize,
    /// Slots of the host KV cache for swapped-out pages; 0 with a window pool or recurrent states.
    pub host_slots: usize,
    /// Maximum sequences of a step.
    pub max_sequences: usize,
    /// Maximum tokens of a prefill chunk.
    pub max_chunk: usize,
    /// Whether a prefill chunk and decode rows can share a step (mixed batch).
    pub mixed: bool,
}

/// Consecutive tokens of one sequence to prefill.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrefillChunk {
    /// The sequence that the tokens belong to.
    pub sequence: SequenceId,
    /// Positions of the tokens in the sequence.
    pub tokens: Range<usize>,
    /// Uses the same kind of step for any number of tokens, so that KV rows do not
    /// depend on chunk boundaries.
    pub exact: bool,
    /// Whether the chunk ends the sequence's tokens, so that a token is chosen next.
    pub needs_logits: bool,
}

/// One token of a sequence to run in a decode row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decode {
    /// The sequence that the token belongs to.
    pub sequence: SequenceId,
    /// Position of the token.
    pub position: usize,
    /// Whether it is the sequence's last token, so that a token is chosen next.
    pub needs_logits: bool,
}

/// A drafted token of a sequence, which runs behind its decode row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DraftRow {
    /// The sequence that the draft is for.
    pub sequence: SequenceId,
    /// Position of the token, if it is kept.
    pub position: usize,
    /// Its number in the vocabulary.
    pub token: u32,
}

/// Work of the next step or steps: swaps, copies, then a prefill chunk and decode rows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// Swaps out to the host KV cache and back in, which run first.
    pub swaps: Vec<Swap>,
    /// Copies of pages, which run after the swaps.
    pub copies: Vec<PageCopy>,
    /// Copies of recurrent-state rows, which run before the tokens.
    pub states: Vec<StateCopy>,
    /// One token each of several sequences, sorted by sequence.
    pub decodes: Vec<Decode>,
    /// Drafted tokens of these sequences; their rows follow those of `decodes`.
    pub drafts: Vec<DraftRow>,
    /// The prefill chunk of one sequence.
    pub chunk: Option<PrefillChunk>,
    /// Copy of the chunk's recurrent state after it has run, kept for later prefix hits.
    pub snapshot: Option<StateCopy>,
    /// Whether a decoding sequence is batch-invariant: the decode rows use the kernels
    /// of the largest batch.
    pub batch_invariant: bool,
    /// Whether the chunk, of a sequence that decodes, runs with drafts after it, in a model with
    /// recurrent states.
    pub verifies: bool,
    /// Whether chunk and decode rows share one step. False if part of the batch
    /// must be batch-invariant.
    pub mixed: bool,
}

impl Batch {
    /// Returns whether the batch has no work.
    pub fn is_empty(&self) -> bool {
        self.decodes.is_empty() && self.chunk.is_none() && self.swaps.is_empty()
    }
    /// Returns the row of a sequence among the decodes.
    pub fn row(&self, id: SequenceId) -> Option<usize> {
        self.decodes
            .binary_search_by_key(&id, |decode| decode.sequence)
            .ok()
    }
    /// Returns the sequences for which a token is chosen after the batch.
    pub fn sequences_with_logits(&self) -> impl Iterator<Item = SequenceId> {
        let decodes = self
            .decodes
            .iter()
            .filter(|d| d.needs_logits)
            .map(|d| d.sequence);
        decodes.chain(
            self.chunk
                .iter()
                .filter(|p| p.needs_logits)
                .map(|p| p.sequence),
        )
    }
}

/// Numbers of sequences, pages and tokens, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Sequences that hold pages.
    pub running: usize,
    /// Sequences that wait for admission.
    pub waiting: usize,
    /// Pages held by sequences.
    pub pages: usize,
    /// Number of pages in the pool.
    pub total_pages: usize,
    /// Unreferenced pages of the prefix cache.
    pub cached_pages: usize,
    /// Unreferenced window pages of the prefix cache.
    pub cached_window_pages: usize,
    /// Unreferenced state snapshots of the prefix cache.
    pub cached_states: usize,
    /// Pages in the host KV cache.
    pub host_pages: usize,
    /// Pages, window pages, state rows and host slots still held while there are no sequences: a
    /// leak. `None` while there are sequences.
    pub leaked: Option<usize>,
    /// Positions that running sequences have computed.
    pub tokens: usize,
    /// Number of preemptions so far.
    pub preempted: u64,
}

/// Pages borrowed from the pool without a sequence.
#[derive(Debug)]
pub struct Borrowed {
    pub(super) pages: Vec<u32>,
    pub(super) windows: Vec<u32>,
    pub(super) state: Option<u32>,
}

impl Borrowed {
    /// The borrowed pages as a block table.
    pub fn pages(&self) -> Pages<'_> {
        Pages {
            all: &self.pages,
            windows: &self.windows,
            state: self.state.unwrap_or(0),
            ..Pages::default()
        }
    }
}
