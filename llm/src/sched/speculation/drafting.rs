//! Runs the model that drafts, in the pages of the sequences that it drafts for.

use super::super::batch::{Batch, Decode, DraftRow, PrefillChunk};
use super::super::batcher::Batcher;
use super::super::error::Error;
use super::super::scheduler::Scheduler;
use super::super::sequence::SequenceId;
use super::{ChosenDraft, DraftOrigin, Drafter, Speculation};
use crate::arch::Logits;
use crate::engine::{Chunk, DecodeRow, Engine, TokenSource};
use crate::sampling::RowSampling;
use gristmill_uop::clock::Instant;

/// Tokens of a sequence that run as rows before its first draft; more run as a part of a prompt.
const MOST_ROWS: usize = 4;

/// A row of the model that drafts.
struct DrafterRow {
    sequence: SequenceId,
    position: usize,
    token: u32,
    /// Hidden row before it.
    from: Option<usize>,
}

/// What drafting reads of a batcher.
struct Drafting<'a> {
    engine: &'a mut Engine,
    scheduler: &'a Scheduler,
    speculation: &'a mut Speculation,
}

impl Batcher {
    /// Chooses the drafts of a batch, and has them made.
    pub(in crate::sched) fn plan_drafts(&mut self, batch: &mut Batch) -> Result<(), Error> {
        let moved = !(batch.copies.is_empty() && batch.swaps.is_empty());
        let (context, own) = (
            self.engine.context(),
            self.scheduler.rows_before_drafts(batch).1,
        );
        let Batcher {
            engine,
            scheduler,
            speculation,
            ..
        } = self;
        let mut drafts = speculation.choose(scheduler, batch, (context, !moved));
        for draft in &mut drafts {
            draft.count = scheduler.extend_for_drafts(draft.decode.sequence, draft.count);
        }
        if let Some(mut drafter) = speculation.drafter.take() {
            let mut drafting = Drafting {
                engine,
                scheduler,
                speculation,
            };
            let made = drafting.make(&mut drafter, &mut drafts);
            self.speculation.drafter = Some(drafter);
            made?;
        }
        batch.drafts = self.speculation.rows(own, drafts);
        let rows = self.engine.step_rows();
        self.scheduler.verify_in_chunk(batch, rows);
        Ok(())
    }
}

impl Drafting<'_> {
    /// Makes the drafts that are of the model that drafts.
    fn make(&mut self, drafter: &mut Drafter, drafts: &mut [ChosenDraft]) -> Result<(), Error> {
        let is_made = |of: &&mut ChosenDraft| of.origin != DraftOrigin::Ngram && of.count > 0;
        let mut open: Vec<&mut ChosenDraft> = drafts.iter_mut().filter(is_made).collect();
        if open.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let mut rows: Vec<DrafterRow> = Vec::new();
        let mut last: Vec<usize> = Vec::new();
        for (nth, draft) in open.iter().enumerate() {
            let room = self.engine.step_rows() - rows.len() - (open.len() - nth - 1);
            rows.extend(self.first_rows(drafter, &draft.decode, room)?);
            last.push(rows.len() - 1);
        }
        let mut is_first = true;
        while !open.is_empty() {
            let chosen = self.run(drafter, &rows, is_first)?;
            is_first = false;
            let mut further = Vec::new();
            rows.clear();
            for (draft, row) in open.into_iter().zip(std::mem::take(&mut last)) {
                let Some(token) = chosen[row] else {
                    draft.count = draft.tokens.len();
                    continue;
                };
                draft.tokens.push(token);
                if draft.tokens.len() == draft.count {
                    continue;
                }
                self.speculation
                    .drafts_mut(draft.decode.sequence)
                    .ran
                    .push(token);
                last.push(rows.len());
                let behind = match drafter.shares_cache(self.engine) {
                    true => 0,
                    false => draft.tokens.len(),
                };
                rows.push(DrafterRow {
                    sequence: draft.decode.sequence,
                    position: draft.decode.position + behind,
                    token,
                    from: Some(row),
                });
                further.push(draft);
            }
            open = further;
        }
        self.speculation.making += begun.elapsed().as_secs_f64();
        Ok(())
    }
    /// Returns the rows of a sequence's tokens that the drafter's cache lacks, at most `room`, of
    /// which the last one drafts. Earlier ones fill the cache here.
    fn first_rows(
        &mut self,
        drafter: &mut Drafter,
        decode: &Decode,
        room: usize,
    ) -> Result<Vec<DrafterRow>, Error> {
        let (id, end) = (decode.sequence, decode.position);
        let tokens = self.scheduler.tokens(id);
        let own = self.speculation.drafts_mut(id);
        if drafter.shares_cache(self.engine) {
            let row = DrafterRow {
                sequence: id,
                position: end,
                token: tokens[end],
                from: own.hidden_row(end),
            };
            return Ok(vec![row]);
        }
        own.keep_ran(tokens, end);
        let reads_hidden = drafter.reads_hidden();
        let rows = match reads_hidden {
            // Those behind hidden rows that are still there.
            true => own.filled.max(own.hidden.0 + 1)..end + 1,
            false if end - own.filled >= MOST_ROWS.min(room) => end..end + 1,
            false => own.filled..end + 1,
        };
        let rows = rows.start.max((end + 1).saturating_sub(room))..rows.end;
        let row = |position| DrafterRow {
            sequence: id,
            position,
            token: tokens[position],
            from: own.hidden_row(position).filter(|_| reads_hidden),
        };
        let made = rows.clone().map(row).collect();
        let missing = own.filled..rows.start;
        (own.filled, own.ran) = (end + 1, Vec::new());
        if !missing.is_empty() {
            let chunk = Chunk {
                tokens: &tokens[missing.clone()],
                position: missing.start,
                pages: self.scheduler.pages(id, missing.end - 1),
                exact: false,
                logits: Logits::None,
                fills_drafts: false,
            };
            drafter.fill(self.engine, chunk)?;
        }
        Ok(made)
    }
    /// Runs rows and returns the most probable token behind each.
    fn run(
        &mut self,
        drafter: &mut Drafter,
        rows: &[DrafterRow],
        is_first: bool,
    ) -> Result<Vec<Option<u32>>, Error> {
        let begun = Instant::now();
        let row = |of: &DrafterRow| DecodeRow {
            token: TokenSource::Token(of.token),
            position: of.position,
            pages: self.scheduler.pages(of.sequence, of.position),
            sampling: RowSampling::greedy(),
        };
        let step: Vec<DecodeRow> = rows.iter().map(row).collect();
        let from: Vec<_> = rows.iter().map(|row| row.from).collect();
        let captures = drafter.captures(self.engine);
        let chosen = drafter.run(self.engine, &step, (&from, is_first))?;
        let seconds = begun.elapsed().as_secs_f64();
        let is_steady = drafter.captures(self.engine) == captures;
        if is_steady && !self.speculation.assumes_times {
            self.speculation.draft_times.record(rows.len(), seconds);
        }
        // Those of the drafts are no steps of the model.
        self.speculation.captures = self.engine.captures();
        Ok(chosen)
    }
}

impl Speculation {
    /// Returns whether a part of a sequence's prompt fills the draft block's cache as well.
    pub fn fills_drafts(&self, scheduler: &Scheduler, id: SequenceId) -> bool {
        let reads = self.drafter.as_ref().is_some_and(Drafter::reads_hidden);
        reads && scheduler.may_speculate(id)
    }
    /// Forgets the hidden rows of the model's last step.
    pub fn forget_hidden(&mut self) {
        for own in self.drafts.values_mut() {
            own.hidden.1.clear();
        }
    }
    /// Records the hidden rows that a step has left: those of a chunk's last token and of the
    /// drafts after it.
    pub fn record_hidden_of_drafted(&mut self, chunk: &PrefillChunk, drafts: usize) {
        if self.drafter.is_some() {
            self.forget_hidden();
            let first = chunk.tokens.len() - 1;
            let rows = (first..=first + drafts).collect();
            self.drafts_mut(chunk.sequence).hidden = (chunk.tokens.end - 1, rows);
        }
    }
    /// Records the hidden rows that a step has left: of the last token of a prompt's part, whose
    /// last step had `chunk_rows` tokens, and of decode rows and drafts.
    pub fn record_hidden(
        &mut self,
        (prefill, chunk_rows): (Option<&PrefillChunk>, usize),
        (decodes, drafts): (&[Decode], &[DraftRow]),
        scheduler: &Scheduler,
    ) {
        if self.drafter.is_none() {
            return;
        }
        self.forget_hidden();
        let first = prefill.map_or(0, |_| chunk_rows);
        if let Some(chunk) = prefill {
            let (start, end) = (chunk.tokens.start, chunk.tokens.end);
            let fills = self.fills_drafts(scheduler, chunk.sequence);
            let is_new = !self.drafts.contains_key(&chunk.sequence);
            let own = self.drafts_mut(chunk.sequence);
            // Rows before a sequence's first part are of a prefix that another one has filled.
            let filled = if is_new { start } else { own.filled.min(start) };
            own.filled = if fills && filled == start {
                end
            } else {
                filled
            };
            own.hidden = (end - 1, vec![chunk_rows.saturating_sub(1)]);
        }
        for (row, decode) in decodes.iter().enumerate() {
            self.drafts_mut(decode.sequence).hidden = (decode.position, vec![first + row]);
        }
        for (row, draft) in drafts.iter().enumerate() {
            let hidden = &mut self.drafts_mut(draft.sequence).hidden;
            hidden.1.push(first + decodes.len() + row);
        }
    }
}
