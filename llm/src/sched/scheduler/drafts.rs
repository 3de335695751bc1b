//! Pages and progress of sequences with drafts.

use super::super::batch::{Batch, Decode, PrefillChunk};
use super::super::reuse::Reuse;
use super::super::sequence::{Sequence, SequenceId};
use super::Scheduler;

impl Scheduler {
    /// Returns whether drafts may run for a sequence: it asks for them, and its text may depend on
    /// the kind of its steps, or does not.
    pub fn may_speculate(&self, id: SequenceId) -> bool {
        let has_states = self.config.state_rows > 0;
        let may = |s: &Sequence| {
            let is_invariant = s.batch_invariant && !has_states;
            s.speculates && (s.reuse == Reuse::Any || is_invariant)
        };
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
            if (s.tokens.len() + count) / self.config.page_size >= s.pages.len() {
                match self.pool.take_without_swap(s.pages.last().copied()) {
                    Some(page) => s.pages.push(page),
                    None => break,
                }
            }
            count += 1;
        }
        if count > 0 {
            let end = s.tokens.len() + count;
            self.pool.ensure_windows(&mut s.windows, &s.pages, end);
        }
        count
    }
    /// Records that a drafted token at this position, which has run, was chosen. With recurrent
    /// states, which are those before it, it runs again.
    pub fn accept_draft(&mut self, id: SequenceId, position: usize) {
        if self.config.state_rows == 0 {
            self.advance(id, position + 1, false);
        }
    }
    /// Returns the last tokens of a batch's sequences, after which drafts may run, and the rows
    /// that the batch has for them.
    ///
    /// Each decode row advances a recurrent state of its own, so that rows of one sequence cannot
    /// follow one another. A model with such states runs the drafts of a single sequence as the end
    /// of a chunk, which begins with the tokens that were drafts of the last step.
    pub fn rows_before_drafts(&self, batch: &Batch) -> (Vec<Decode>, usize) {
        let has_states = self.config.state_rows > 0;
        match (&batch.chunk, &batch.decodes[..]) {
            (None, decodes) if !has_states => (decodes.to_vec(), decodes.len()),
            (None, [decode]) => (vec![*decode], 1),
            (Some(chunk), []) if has_states && self.is_resumed(chunk) => {
                let decode = Decode {
                    sequence: chunk.sequence,
                    position: chunk.tokens.end - 1,
                    needs_logits: true,
                };
                (vec![decode], chunk.tokens.len())
            }
            _ => (Vec::new(), 0),
        }
    }
    /// Returns whether a chunk has only tokens after the prompt, up to the last one.
    fn is_resumed(&self, chunk: &PrefillChunk) -> bool {
        let s = self.running.get(&chunk.sequence);
        chunk.needs_logits && s.is_some_and(|s| !s.hidden && chunk.tokens.start >= s.prompt)
    }
    /// Makes a chunk of a batch's single sequence and its drafts, if the model has recurrent
    /// states; steps have at most `rows` rows.
    pub fn verify_in_chunk(&self, batch: &mut Batch, rows: usize) {
        if self.config.state_rows == 0 {
            return;
        }
        if let ([decode], false) = (&batch.decodes[..], batch.drafts.is_empty()) {
            batch.chunk = Some(PrefillChunk {
                sequence: decode.sequence,
                tokens: decode.position..decode.position + 1,
                exact: false,
                needs_logits: true,
            });
            batch.decodes.clear();
        }
        let is_short = |of: &PrefillChunk| of.tokens.len() + batch.drafts.len() <= rows;
        let chunk = batch.chunk.as_ref().filter(|_| batch.decodes.is_empty());
        batch.verifies = chunk.is_some_and(|of| self.is_resumed(of) && is_short(of));
    }
}
