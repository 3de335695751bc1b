//! An engine that does what the scheduler says.

use super::pace::Pace;
use super::scheduler::{Batch, Bounds, Load, Scheduler};
use super::sequence::SequenceId;
use crate::arch::{Logits, Options};
use crate::engine::{Engine, Pages, Part, Row};
use crate::prefix::Reuse;
use crate::sampling::{Ask, Choice, Ranked};
use crate::session::Error;
use std::ops::ControlFlow;
use std::time::Instant;

/// Most tokens of a piece where nobody waits but whoever asked.
const PIECE: usize = 512;

/// A sequence whose next token is to be chosen, after a step.
#[derive(Clone, Copy, Debug)]
pub struct Stepped {
    /// Which.
    pub sequence: SequenceId,
    /// Its row of the step; none where it was a piece.
    row: Option<usize>,
}

/// A step that failed, and the sequences that ended with it.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// Who was in it. They are gone.
    pub sequences: Vec<SequenceId>,
}

/// Has an engine run the piece of a prompt that begins at a position. May break off.
pub type RunPiece<'a> = dyn FnMut(&mut Engine, &[u32], usize) -> Result<ControlFlow<()>, Error> + 'a;

/// Says what is asked of the row of a sequence, whose tokens these are; nothing where its most probable token will do, or all of its logits are wanted.
pub type Asking<'a> = dyn FnMut(SequenceId, &[u32]) -> Option<Ask> + 'a;

/// Many sequences of one model: prompts go in, whose next token it is comes out, and the token that was chosen goes in.
pub struct Batcher {
    engine: Engine,
    bounds: Bounds,
    scheduler: Scheduler,
    pace: Pace,
    /// Logits after the piece of the last step, and those that were asked for.
    piece: Vec<f32>,
    logits: Vec<f32>,
    /// The most probable token of each row of the last step, once they were asked for.
    chosen: Option<Vec<Option<u32>>>,
    rows: usize,
    /// What the rows of the last step were told, and whether any are.
    ranked: Vec<Option<Ranked>>,
    ranks: bool,
}

impl Batcher {
    /// With the pool of an engine that has one. Unless `batch_invariant`, what a sequence gives may depend in its last bits on how many are beside it, and steps of few are faster.
    ///
    /// # Errors
    /// The engine, where its cache is one sequence's.
    pub fn new(engine: Engine, batch_invariant: bool) -> Result<Batcher, Box<Engine>> {
        let Some(pages) = engine.pages() else { return Err(Box::new(engine)) };
        let piece = PIECE.min(engine.chunk());
        let windows = engine.window_pages().zip(engine.model().window()).map(|(pages, seen)| [pages, seen]);
        let (page, sequences) = (Options::PAGE, engine.most_sequences());
        let bounds = Bounds { pages, page, windows, sequences, piece, batch_invariant };
        Ok(Batcher {
            scheduler: Scheduler::new(bounds),
            bounds,
            pace: Pace::new(piece),
            piece: Vec::new(),
            logits: Vec::new(),
            chosen: None,
            rows: 0,
            ranked: Vec::new(),
            ranks: engine.decides(Choice::Best),
            engine,
        })
    }
    /// With rows that are told what is asked of them, or not, whatever the device is better at. Tokens are the same.
    pub fn with_ranks(self, ranks: bool) -> Batcher {
        Batcher { ranks, ..self }
    }
    /// Forgets everybody and everything: after a fault of ours, when nothing may be what it should.
    pub fn reset(&mut self) {
        // What ran may have failed as well; nothing of it is used.
        let _ = self.engine.finish();
        self.scheduler = Scheduler::new(self.bounds);
    }
    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
    /// Who is in the next step.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
    /// How much there is to do.
    pub fn load(&self) -> Load {
        self.scheduler.load()
    }
    /// Bytes of pages that nobody has and that hold what may be asked for again.
    pub fn kept_bytes(&self) -> usize {
        let (load, [all, windows]) = (self.load(), [Part::All, Part::Window].map(|part| self.engine.row_bytes(part)));
        let windows = windows * if self.bounds.windows.is_some() { load.kept_windows } else { load.kept_pages };
        (load.kept_pages * all + windows) * Options::PAGE
    }
    /// Has a prompt wait for its turn.
    ///
    /// # Errors
    /// When it is empty, does not leave room for one more token, or has tokens that there are not.
    pub fn add(&mut self, prompt: &[u32], reuse: Reuse) -> Result<SequenceId, Error> {
        let context = self.engine.context();
        if prompt.len() >= context {
            return Err(Error::Prompt { prompt: prompt.len(), context });
        }
        self.engine.check(prompt)?;
        Ok(self.scheduler.add(prompt.to_vec(), reuse))
    }
    /// Goes on with a sequence whose turn it was.
    pub fn push(&mut self, sequence: SequenceId, token: u32) {
        self.scheduler.push(sequence, token);
    }
    /// A sequence ends.
    pub fn remove(&mut self, sequence: SequenceId) {
        self.scheduler.remove(sequence);
    }
    /// A sequence ends, of whose logits some were no numbers: nothing that it has computed is used again.
    pub fn spoil(&mut self, sequence: SequenceId) {
        self.scheduler.spoil(sequence);
    }
    /// Is there no room for another token of it?
    pub fn is_full(&self, sequence: SequenceId) -> bool {
        self.scheduler.tokens(sequence).len() >= self.engine.context()
    }
    /// Runs the next step: whose next token is to be chosen then, before the step after. While it runs `asking` says what is asked of the rows of those.
    ///
    /// # Errors
    /// When the device fails. Those that were in the step have ended then.
    pub fn step(&mut self, asking: &mut Asking) -> Result<Vec<Stepped>, Failed> {
        let batch = self.scheduler.next_batch(self.pace.tokens());
        (self.chosen, self.rows) = (None, batch.decodes.len());
        self.ranked.clear();
        if let Err(error) = self.run(&batch, asking) {
            let _ = self.engine.finish();
            return Err(Failed { error, sequences: self.scheduler.failed(&batch) });
        }
        self.scheduler.ran(&batch);
        let row = |(row, decode): (usize, &super::Decode)| {
            decode.ends.then_some(Stepped { sequence: decode.sequence, row: Some(row) })
        };
        let rows = batch.decodes.iter().enumerate().filter_map(row);
        let pieces = batch.piece.iter().filter(|piece| piece.ends);
        Ok(rows.chain(pieces.map(|piece| Stepped { sequence: piece.sequence, row: None })).collect())
    }
    fn run(&mut self, batch: &Batch, asking: &mut Asking) -> Result<(), Error> {
        let Batcher { engine, scheduler, .. } = self;
        for copy in &batch.copies {
            engine.copy_page(copy)?;
        }
        let begun = Instant::now();
        // The piece first: rows leave their logits where it leaves its own.
        if let Some(piece) = &batch.piece {
            engine.select(scheduler.pages(piece.sequence, piece.tokens.end - 1))?;
            let tokens = &scheduler.tokens(piece.sequence)[piece.tokens.clone()];
            let logits = if piece.ends { Logits::Last } else { Logits::None };
            let logits = match piece.exact {
                true => engine.forward_chunks(tokens, piece.tokens.start, logits)?,
                false => engine.forward_with(tokens, piece.tokens.start, logits)?,
            };
            self.piece.clear();
            self.piece.extend_from_slice(logits);
        }
        let read = Instant::now();
        let row = |decode: &super::Decode| Row {
            token: scheduler.tokens(decode.sequence)[decode.position],
            position: decode.position,
            pages: scheduler.pages(decode.sequence, decode.position),
        };
        let rows: Vec<Row> = batch.decodes.iter().map(row).collect();
        match batch.alike {
            _ if rows.is_empty() => {}
            alike if self.ranks => {
                let mut ask = |decode: &super::Decode| {
                    let ends = decode.ends.then(|| scheduler.tokens(decode.sequence));
                    ends.and_then(|tokens| asking(decode.sequence, tokens))
                };
                self.ranked =
                    engine.step_rows_ranked(&rows, alike, &mut || batch.decodes.iter().map(&mut ask).collect())?;
            }
            true => engine.step_rows_alike(&rows)?,
            false => engine.step_rows(&rows)?,
        }
        if let Some(piece) = batch.piece.as_ref().filter(|_| !rows.is_empty()) {
            self.pace.took(piece.tokens.len(), read - begun, read.elapsed());
        }
        Ok(())
    }
    /// The most probable token after a sequence whose turn it is; none where only its logits can tell.
    ///
    /// # Errors
    /// When the device fails.
    pub fn most_probable(&mut self, of: Stepped) -> Result<Option<u32>, Error> {
        let Some(row) = of.row else { return Ok(None) };
        if self.chosen.is_none() {
            self.chosen = Some(self.engine.most_probable(self.rows)?);
        }
        Ok(self.chosen.as_ref().and_then(|chosen| chosen[row]))
    }
    /// What was asked of the row of a sequence whose turn it is; nothing where nothing was, or the host is better at looking at all of its logits.
    pub fn ranked(&self, of: Stepped) -> Option<&Ranked> {
        self.ranked.get(of.row?)?.as_ref()
    }
    /// The logits after a sequence whose turn it is.
    ///
    /// # Errors
    /// When the device fails.
    pub fn logits(&mut self, of: Stepped) -> Result<&[f32], Error> {
        match of.row {
            None => Ok(&self.piece),
            Some(row) => {
                self.engine.row_logits(row, &mut self.logits)?;
                Ok(&self.logits)
            }
        }
    }
    /// Runs all of a prompt in pages that nobody else sees, in pieces of at most `most` tokens; `run` has the engine run the piece that begins at a position, and may
    /// break off. `None` where there are not enough pages now.
    ///
    /// # Errors
    /// When the prompt does not fit or has tokens that there are not, or the device fails.
    pub fn apart(&mut self, prompt: &[u32], most: usize, run: &mut RunPiece) -> Result<Option<ControlFlow<()>>, Error> {
        let context = self.engine.context();
        if prompt.len() > context {
            return Err(Error::Prompt { prompt: prompt.len(), context });
        }
        self.engine.check(prompt)?;
        let Some(borrowed) = self.scheduler.borrow(prompt.len(), most) else { return Ok(None) };
        let flow = self.in_pieces(prompt, borrowed.pages(), most, run);
        self.scheduler.give_back(&borrowed);
        flow.map(Some)
    }
    fn in_pieces(
        &mut self,
        prompt: &[u32],
        pages: Pages,
        most: usize,
        run: &mut RunPiece,
    ) -> Result<ControlFlow<()>, Error> {
        self.engine.select(pages)?;
        let mut at = 0;
        for piece in prompt.chunks(most) {
            if run(&mut self.engine, piece, at)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            at += piece.len();
        }
        Ok(ControlFlow::Continue(()))
    }
}
