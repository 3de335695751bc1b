//! Admission: gives waiting sequences their prefix hit and pages.

use super::super::pages::{PagePool, PrefixHit};
use super::super::prefix_node::root_of;
use super::super::reuse::{BLOCK, Reuse};
use super::super::sequence::Sequence;
use super::Scheduler;
use crate::engine::{PageCopy, StateCopy};

impl Scheduler {
    /// Admits waiting sequences, in order of arrival, while there are pages for all of their
    /// tokens.
    pub(super) fn admit(&mut self) {
        while self.running.len() < self.config.max_sequences
            && let Some(first) = self.waiting.values().next()
        {
            // Every running sequence may need a page before the next is admitted.
            let needed = first.tokens.len().div_ceil(self.config.page_size)
                + usize::from(!self.running.is_empty());
            // Without the last token, which must run to produce logits. With exact reuse only whole
            // blocks of the prompt, so that recomputing after preemption gives the same rows, even
            // if others have exact rows of more tokens by now.
            let known = match first.reuse {
                Reuse::Exact => (first.prompt - 1) / BLOCK * BLOCK,
                Reuse::Any => first.tokens.len() - 1,
            };
            let (known, root) = (&first.tokens[..known], root_of(&first.adapters));
            let mut found = self.pool.find(root, known, first.reuse, true);
            let short = |pool: &PagePool, found: &PrefixHit| {
                needed.saturating_sub(found.pages.len()) > pool.free()
            };
            // The source of a copy is retained, which takes one more page.
            if short(&self.pool, &found) && found.partial.is_some() {
                self.pool.release_hit(found);
                found = self.pool.find(root, known, first.reuse, false);
            }
            // Until the pending copies are made, their sources may occupy all spare state rows.
            let (lacks, state) = (short(&self.pool, &found), self.pool.take_state());
            if lacks || state.is_none() && self.config.state_rows > 0 {
                state.iter().for_each(|&row| self.pool.release_state(row));
                self.pool.release_hit(found);
                return;
            }
            self.pool.reserve(needed.saturating_sub(found.pages.len()));
            let Some((id, mut sequence)) = self.waiting.pop_first() else {
                return;
            };
            sequence.state = state;
            self.assign_pages(&mut sequence, found);
            self.running.insert(id, sequence);
        }
    }
    /// Assigns a sequence its prefix hit and pages for its remaining tokens.
    fn assign_pages(&mut self, sequence: &mut Sequence, found: PrefixHit) {
        let page = self.config.page_size;
        sequence.node = found.node;
        (sequence.pages, sequence.windows, sequence.matched) =
            (found.pages, found.windows, found.matched);
        if let Some((from, to)) = found.state.zip(sequence.state) {
            self.states.push(StateCopy { from, to });
        }
        for host_page in found.swapped_out {
            // Admission has ensured pages for all tokens.
            let last = sequence.pages.last().copied();
            let Some(page) = self.pool.take(last) else {
                unreachable!("a sequence is admitted with pages for its tokens")
            };
            self.pool.swap_in(host_page, page);
            sequence.pages.push(page);
        }
        sequence.computed = sequence.pages.len() * page;
        if let Some(part) = found.partial.filter(|part| self.pool.can_append(part)) {
            // The sequence continues where the page ends: no copy.
            sequence.pages.push(part.page);
            sequence.windows.numbers.extend(part.window);
            sequence.computed += part.positions;
        } else if let Some(part) = found.partial {
            let to = self
                .pool
                .take(sequence.pages.last().copied())
                .expect("who is admitted has pages for all of its tokens");
            sequence.pages.push(to);
            sequence.computed += part.positions;
            self.pool
                .ensure_windows(&mut sequence.windows, &sequence.pages, sequence.computed);
            let windows = part
                .window
                .zip(sequence.windows.numbers.last())
                .map(|(from, &to)| [from, to]);
            self.copies.push(PageCopy {
                from: part.page,
                to,
                windows,
            });
        }
        sequence.exact = found.exact.min(sequence.computed);
        while sequence.pages.len() < sequence.tokens.len().div_ceil(page)
            && let Some(page) = self.pool.take(sequence.pages.last().copied())
        {
            sequence.pages.push(page);
        }
        sequence.reused.get_or_insert(sequence.computed);
        // Exact rows cost one more step, and shorter chunks.
        sequence.exact_blocks = sequence.reuse == Reuse::Exact;
        self.turns += 1;
        sequence.turn = self.turns;
    }
}
