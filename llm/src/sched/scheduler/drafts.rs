//! Pages and progress of sequences with drafts.

use super::super::reuse::Reuse;
use super::super::sequence::{Sequence, SequenceId};
use super::Scheduler;

impl Scheduler {
    /// Returns whether drafts may run for a sequence: it asks for them, and its text may depend on
    /// the kind of its steps, or does not.
    pub fn may_speculate(&self, id: SequenceId) -> bool {
        let may = |s: &Sequence| s.speculates && (s.reuse == Reuse::Any || s.batch_invariant);
        self.running.get(&id).is_some_and(may)
    }
    /// Returns whether a sequence has pages.
    pub fn is_running(&self, id: SequenceId) -> bool {
        self.running.contains_key(&id)
    }
    /// Takes pages for at most `most` tokens behind the next one of a sequence, without preemption
    /// or swaps. Returns the number of tokens that have pages.
    pub fn extend_for_drafts(&mut self, id: SequenceId, most: usize) -> usize {
        let Some(s) = self.running.get_mut(&id) else {
            return 0;
        };
        let mut count = 0;
        while count < most {
            if (s.computed + 1 + count) / self.config.page_size >= s.pages.len() {
                match self.pool.take_without_swap(s.pages.last().copied()) {
                    Some(page) => s.pages.push(page),
                    None => break,
                }
            }
            count += 1;
        }
        if count > 0 {
            let end = s.computed + 1 + count;
            self.pool.ensure_windows(&mut s.windows, &s.pages, end);
        }
        count
    }
    /// Records that a drafted token at this position, which has run, was chosen.
    pub fn accept_draft(&mut self, id: SequenceId, position: usize) {
        self.advance(id, position + 1, false);
    }
}
