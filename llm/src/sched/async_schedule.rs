//! Asynchronous scheduling: decode step t+1 starts before step t's tokens are read.
//!
//! Step t+1 has a row for every sequence that is not known to end with step t. If a sequence does
//! end, its row is discarded, and its pages are held until the step is over.

use super::batch::{Batch, Decode};
use super::batcher::{Batcher, ReadySequence, SamplingFn};
use super::error::Error;
use crate::engine::{DecodeRow, Step, TokenSource};
use gristmill_uop::clock::Instant;

impl Batcher {
    /// Returns the token that the device sampled for a sequence; `None` if the host chooses.
    pub fn drawn(&self, of: ReadySequence) -> Option<u32> {
        *self.in_flight.drawn.get(of.row?)?
    }
    /// Starts a batch of known tokens if the device can sample all of the next ones. Returns
    /// whether it was started.
    pub(super) fn start_in_flight(
        &mut self,
        batch: &Batch,
        sampling: &mut SamplingFn,
    ) -> Result<bool, Error> {
        let by_host = std::mem::take(&mut self.in_flight.host_chooses);
        let moved = !(batch.copies.is_empty() && batch.states.is_empty() && batch.swaps.is_empty());
        let whole = batch.chunk.is_none() && !moved && !batch.decodes.is_empty();
        let ends = batch.decodes.iter().all(|d| d.needs_logits) && batch.drafts.is_empty();
        if !self.in_flight.enabled || by_host || !whole || !ends {
            return Ok(false);
        }
        self.in_flight.last_read = None;
        self.start(batch, None, sampling)
    }
    /// Starts a batch. Its tokens are chosen by the in-flight step `before`, or known.
    fn start(
        &mut self,
        batch: &Batch,
        before: Option<&Batch>,
        sampling: &mut SamplingFn,
    ) -> Result<bool, Error> {
        let contiguous = self.is_contiguous();
        let Batcher {
            engine, scheduler, ..
        } = self;
        let several = batch.decodes.len() > 1;
        let row = |d: &Decode| {
            let token = match before.and_then(|before| before.row(d.sequence)) {
                Some(row) => TokenSource::Row(row),
                None => TokenSource::Token(scheduler.tokens(d.sequence)[d.position]),
            };
            let (draws, _) = sampling(d.sequence)
                .filter(|(draws, _)| !several || draws.candidate_set().is_batched())?;
            Some(DecodeRow {
                token,
                position: d.position,
                pages: scheduler.pages(d.sequence, d.position),
                sampling: draws,
            })
        };
        let Some(rows) = batch
            .decodes
            .iter()
            .map(row)
            .collect::<Option<Vec<DecodeRow>>>()
        else {
            return Ok(false);
        };
        let step = Step {
            chunk: None,
            rows: &rows,
            batch_invariant: batch.batch_invariant,
            drafted: None,
            contiguous,
        };
        let started = engine.start(&step)?;
        if started {
            self.speculation.forget_hidden();
        }
        self.steps.all += u64::from(started);
        self.steps.asynchronous += u64::from(started && before.is_some());
        Ok(started)
    }
    /// Starts the next step as far as it is known, then reads the tokens of the step in flight.
    pub(super) fn read_in_flight(
        &mut self,
        batch: &Batch,
        sampling: &mut SamplingFn,
    ) -> Result<Vec<ReadySequence>, Error> {
        let context = self.engine.context();
        let mut goes_on = |sequence, position| {
            sampling(sequence).is_some_and(|(_, left)| left > 1 && position < context)
        };
        let waits = self.in_flight.host_chooses || self.in_flight.waited.is_some();
        let speculation = &mut self.speculation;
        let drafts =
            !waits && speculation.is_on() && speculation.expects(&self.scheduler, batch, context);
        speculation.waited |= drafts;
        let waits = waits || drafts;
        let next = match waits {
            true => None,
            false => self.scheduler.next_in_flight(batch, &mut goes_on),
        };
        let started = match &next {
            Some(next) => self.start(next, Some(batch), sampling)?,
            None => false,
        };
        self.in_flight.drawn = match self.in_flight.waited.take() {
            Some(ids) => ids,
            None => self.engine.wait()?.chosen,
        };
        if !started {
            let (rows, scheduler) = ((&batch.decodes[..], &[][..]), &self.scheduler);
            self.speculation.record_hidden((None, 0), rows, scheduler);
        }
        self.scheduler.release_in_flight();
        self.in_flight.batch = next.filter(|_| started);
        if let Some(next) = &self.in_flight.batch {
            self.scheduler.hold_in_flight(next);
        }
        let now = Instant::now();
        if let Some(before) = self.in_flight.last_read.replace(now) {
            self.prefill_budget.record_decode(now - before);
            let seconds = (now - before).as_secs_f64();
            let captures = self.engine.captures();
            self.speculation
                .record(batch.decodes.len(), seconds, captures);
        }
        Ok(self.chosen_rows(batch))
    }
    /// Returns the running sequences of a batch for which the device has sampled tokens.
    fn chosen_rows(&mut self, batch: &Batch) -> Vec<ReadySequence> {
        let rows = batch.decodes.iter().enumerate();
        let here =
            rows.filter(|(_, d)| self.scheduler.next_position(d.sequence) == Some(d.position));
        let (known, unknown): (Vec<_>, Vec<_>) =
            here.partition(|(row, _)| self.in_flight.drawn[*row].is_some());
        // A row without a token runs again, so that the host sees its logits. A recurrent state has
        // already advanced past that token, so the sequence is recomputed from its last snapshot.
        self.in_flight.host_chooses |= !unknown.is_empty();
        if self.engine.cache().state_rows() > 0 {
            unknown
                .iter()
                .for_each(|(_, d)| self.scheduler.requeue(d.sequence));
        }
        let decodes = known.iter().map(|(_, d)| **d).collect();
        let stepped = known
            .iter()
            .map(|(row, d)| ReadySequence {
                sequence: d.sequence,
                row: Some(*row),
            })
            .collect();
        self.scheduler.finish_batch(&Batch {
            decodes,
            ..Batch::default()
        });
        stepped
    }
    /// Waits for the step in flight, if there is one; its tokens are returned with the next step.
    pub(super) fn wait_in_flight(&mut self) -> Result<(), Error> {
        if self.in_flight.batch.is_some() && self.in_flight.waited.is_none() {
            self.in_flight.waited = Some(self.engine.wait()?.chosen);
        }
        Ok(())
    }
    /// Ends the step in flight if no sequences are left.
    pub(super) fn end_if_idle(&mut self) {
        if self.scheduler.is_idle() {
            self.speculation.interrupt();
        }
        if self.scheduler.is_idle() && self.in_flight.batch.is_some() {
            // Its sequences are gone; the next step reports a device error.
            let _ = self.engine.finish();
            self.in_flight.forget();
            self.scheduler.release_in_flight();
        }
    }
}
