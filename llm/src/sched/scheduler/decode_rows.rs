//! Decode rows of a batch, and the pages of their tokens.

use super::super::batch::Decode;
use super::super::sequence::{Sequence, SequenceId};
use super::Scheduler;

impl Scheduler {
    /// Returns a decode row for every decoding sequence, with its page allocated.
    pub(super) fn decode_rows(&mut self) -> Vec<Decode> {
        let all: Vec<SequenceId> = self
            .running
            .values()
            .filter(|s| s.decodes())
            .map(|s| s.id)
            .collect();
        let mut out = Vec::new();
        for id in all {
            if !self.ensure_page(id) {
                continue;
            }
            let Some(s) = self.running.get(&id) else {
                continue;
            };
            out.push(Decode {
                sequence: id,
                position: s.computed,
                needs_logits: s.computed + 1 == s.tokens.len(),
            });
        }
        // Some may have been preempted since.
        out.retain(|decode| self.running.contains_key(&decode.sequence));
        out
    }
    /// Allocates pages for sequences whose last tokens were drafts and run again in a chunk.
    pub(super) fn extend_resumed(&mut self) {
        let is_resumed = |s: &&Sequence| !s.decodes() && s.computed >= s.prompt;
        let all: Vec<SequenceId> = self
            .running
            .values()
            .filter(is_resumed)
            .map(|s| s.id)
            .collect();
        all.into_iter().for_each(|id| _ = self.ensure_page(id));
    }
    /// Allocates pages for a sequence's next position, or for all of its tokens if it does not
    /// decode, preempting the youngest sequences if necessary. Returns false if the sequence itself
    /// was preempted.
    pub(super) fn ensure_page(&mut self, id: SequenceId) -> bool {
        loop {
            let page = self.config.page_size;
            let Some(sequence) = self.running.get_mut(&id) else {
                return false;
            };
            let end = match sequence.decodes() {
                true => sequence.computed + 1,
                false => sequence.tokens.len(),
            };
            if end <= page * sequence.pages.len() {
                self.pool
                    .ensure_windows(&mut sequence.windows, &sequence.pages, end);
                return true;
            }
            if let Some(page) = self.pool.take(sequence.pages.last().copied()) {
                sequence.pages.push(page);
                continue;
            }
            let Some((&youngest, _)) = self.running.last_key_value() else {
                return false;
            };
            self.preempt(youngest);
        }
    }
}
