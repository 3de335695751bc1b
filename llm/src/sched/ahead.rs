//! Steps of answers that are started before the one before is read. Each has a token of those that are not known to have ended by then; of one that has, what its row gives is discarded, and its pages
//! are nobody's until the step is over.

use super::batch::Batch;
use super::batcher::{Batcher, Drawing, Stepped};
use crate::engine::{AheadRow, Source};
use crate::session::Error;
use std::time::Instant;

impl Batcher {
    /// The token that was chosen on the device for a sequence whose turn it is; none where the host chooses.
    pub fn drawn(&self, of: Stepped) -> Option<u32> {
        *self.ahead.drawn.get(of.row?)?
    }
    /// Starts a batch whose tokens are known here, where all of it can be chosen on the device. Was it started?
    pub(super) fn start_first(&mut self, batch: &Batch, drawing: &mut Drawing) -> Result<bool, Error> {
        let by_host = std::mem::take(&mut self.ahead.by_host);
        let moved = !(batch.copies.is_empty() && batch.states.is_empty() && batch.moves.is_empty());
        let whole = batch.piece.is_none() && !moved && !batch.decodes.is_empty();
        let ends = batch.decodes.iter().all(|d| d.ends);
        if !self.ahead.wanted || by_host || !whole || !ends {
            return Ok(false);
        }
        self.ahead.read = None;
        self.start(batch, None, drawing)
    }
    /// Starts a batch, of tokens that the one before chooses, or without that of those that are known.
    fn start(&mut self, batch: &Batch, before: Option<&Batch>, drawing: &mut Drawing) -> Result<bool, Error> {
        let Batcher { engine, scheduler, .. } = self;
        let row = |d: &super::Decode| {
            let token = match before.and_then(|before| before.row(d.sequence)) {
                Some(row) => Source::Row(row),
                None => Source::Token(scheduler.tokens(d.sequence)[d.position]),
            };
            let (draws, _) = drawing(d.sequence)?;
            Some(AheadRow { token, position: d.position, pages: scheduler.pages(d.sequence, d.position), draws })
        };
        let rows: Option<Vec<AheadRow>> = batch.decodes.iter().map(row).collect();
        let started = rows.map_or(Ok(false), |rows| engine.start_rows(&rows, batch.batch_invariant))?;
        self.steps.all += u64::from(started);
        self.steps.ahead += u64::from(started && before.is_some());
        Ok(started)
    }
    /// Starts the step behind one that is under way, as far as that can be said, and reads what that has chosen.
    pub(super) fn read_ahead(&mut self, batch: &Batch, drawing: &mut Drawing) -> Result<Vec<Stepped>, Error> {
        let context = self.engine.context();
        let mut goes_on =
            |sequence, position| drawing(sequence).is_some_and(|(_, left)| left > 1 && position < context);
        let next = match self.ahead.by_host || self.ahead.landed.is_some() {
            true => None,
            false => self.scheduler.next_ahead(batch, &mut goes_on),
        };
        let started = match &next {
            Some(next) => self.start(next, Some(batch), drawing)?,
            None => false,
        };
        self.ahead.drawn = match self.ahead.landed.take() {
            Some(ids) => ids,
            None => self.engine.wait_for_rows()?,
        };
        self.scheduler.let_go();
        self.ahead.under_way = next.filter(|_| started);
        if let Some(next) = &self.ahead.under_way {
            self.scheduler.hold(next);
        }
        let now = Instant::now();
        if let Some(before) = self.ahead.read.replace(now) {
            self.pace.answered(now - before);
        }
        Ok(self.told(batch))
    }
    /// Whose tokens a batch has chosen, of those that are still here.
    fn told(&mut self, batch: &Batch) -> Vec<Stepped> {
        let rows = batch.decodes.iter().enumerate();
        let here = rows.filter(|(_, d)| self.scheduler.next_position(d.sequence) == Some(d.position));
        let (known, unknown): (Vec<_>, Vec<_>) = here.partition(|(row, _)| self.ahead.drawn[*row].is_some());
        // It is run again, and its logits looked at. States cannot be, which have seen the token: all that has been computed since a copy was made is.
        self.ahead.by_host |= !unknown.is_empty();
        if self.engine.state_rows() > 0 {
            unknown.iter().for_each(|(_, d)| self.scheduler.run_again(d.sequence));
        }
        let decodes = known.iter().map(|(_, d)| **d).collect();
        let told = known.iter().map(|(row, d)| Stepped { sequence: d.sequence, row: Some(*row) }).collect();
        self.scheduler.ran(&Batch { decodes, ..Batch::default() });
        told
    }
    /// Waits for the step that is under way, if there is one, whose tokens are given with the next.
    pub(super) fn wait_ahead(&mut self) -> Result<(), Error> {
        if self.ahead.under_way.is_some() && self.ahead.landed.is_none() {
            self.ahead.landed = Some(self.engine.wait_for_rows()?);
        }
        Ok(())
    }
    /// Where nobody is here any more, nobody reads the step that is under way.
    pub(super) fn nobody_waits(&mut self) {
        if self.scheduler.is_idle() && self.ahead.under_way.is_some() {
            // Who failed in it is gone; the next step meets what is wrong with the device.
            let _ = self.engine.finish();
            self.ahead.forget();
            self.scheduler.let_go();
        }
    }
}
