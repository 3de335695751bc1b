//! An engine that does what the scheduler says.

use super::batch::{Batch, Decode, Load, SchedulerConfig};
use super::pace::Pace;
use super::pages::Swap;
use super::scheduler::Scheduler;
use super::sequence::{SequenceId, SequenceOptions};
use super::under_way::Ahead;
use crate::arch::Options;
use crate::engine::{self, Engine, Pages, Part, Row};
use crate::sampling::{Ask, Choice, Draws, Ranked};
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
    /// Its row of the step; none where it was a piece in a step of its own.
    pub(super) row: Option<usize>,
}

/// How many steps of the model there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Steps {
    /// All of them.
    pub all: u64,
    /// Those with tokens of answers and a piece of a prompt.
    pub mixed: u64,
    /// Those that were started before the one before was read.
    pub ahead: u64,
    /// Pages that came back from the host.
    pub brought_back: u64,
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

/// Says how a device may choose the tokens of a sequence before the host has seen the one before, and how many may still come; nothing where the host has to choose.
pub type Drawing<'a> = dyn FnMut(SequenceId) -> Option<(Draws, usize)> + 'a;

/// Many sequences of one model: prompts go in, whose next token it is comes out, and the token that was chosen goes in.
pub struct Batcher {
    pub(super) engine: Engine,
    bounds: SchedulerConfig,
    /// What the host's places for pages hold.
    host: Vec<Vec<u8>>,
    pub(super) scheduler: Scheduler,
    pub(super) pace: Pace,
    /// Logits after the piece of the last step, and those that were asked for.
    piece: Vec<f32>,
    logits: Vec<f32>,
    /// The most probable token of each row of the last step, once they were asked for.
    chosen: Option<Vec<Option<u32>>>,
    rows: usize,
    /// What the rows of the last step were told, and whether any are.
    ranked: Vec<Option<Ranked>>,
    ranks: bool,
    pub(super) steps: Steps,
    /// Steps that are started before the one before is read.
    pub(super) ahead: Ahead,
}

impl Batcher {
    /// Creates a batcher over the page pool of an engine.
    ///
    /// # Errors
    /// The engine, where its cache is one sequence's.
    pub fn new(engine: Engine) -> Result<Batcher, Box<Engine>> {
        let Some(pages) = engine.pages() else { return Err(Box::new(engine)) };
        let piece = PIECE.min(engine.chunk());
        let windows = engine.window_pages().zip(engine.model().window()).map(|(pages, seen)| [pages, seen]);
        let (page, sequences, mixed) = (Options::PAGE, engine.most_sequences(), engine.mixes());
        let states = engine.state_rows();
        let bounds = SchedulerConfig { pages, page, windows, states, places: 0, sequences, piece, mixed };
        Ok(Batcher {
            scheduler: Scheduler::new(bounds),
            bounds,
            host: Vec::new(),
            pace: Pace::new(piece),
            piece: Vec::new(),
            logits: Vec::new(),
            chosen: None,
            rows: 0,
            ranked: Vec::new(),
            ranks: engine.decides(Choice::Best),
            steps: Steps::default(),
            ahead: Ahead::new(engine.device().overlaps()),
            engine,
        })
    }
    /// With so many bytes of the host's memory, at most, for pages that leave the pool: they come back by a copy where they are asked for again. Of nobody yet.
    ///
    /// None where there is a pool of windows or of states: what a page has of those may be gone long before the page is.
    pub fn keeping(self, bytes: usize) -> Batcher {
        let more = self.bounds.windows.is_some() || self.bounds.states > 0;
        let places = if more { 0 } else { bytes / self.engine.page_bytes().max(1) };
        let bounds = SchedulerConfig { places, ..self.bounds };
        let host = (0..places).map(|_| Vec::new()).collect();
        Batcher { bounds, host, scheduler: Scheduler::new(bounds), ..self }
    }
    /// With rows that are told what is asked of them, or not, whatever the device is better at. Tokens are the same.
    pub fn with_ranks(self, ranks: bool) -> Batcher {
        Batcher { ranks, ..self }
    }
    /// With steps that are started before the one before is read, or none, whatever the device is better at. Tokens are the same.
    pub fn with_ahead(self, wanted: bool) -> Batcher {
        Batcher { ahead: Ahead::new(wanted), ..self }
    }
    /// Forgets everybody and everything: after a fault of ours, when nothing may be what it should.
    pub fn reset(&mut self) {
        // What ran may have failed as well; nothing of it is used.
        let _ = self.engine.finish();
        self.ahead.forget();
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
    /// How many steps there were.
    pub fn steps(&self) -> Steps {
        self.steps
    }
    /// How much there is to do.
    pub fn load(&self) -> Load {
        self.scheduler.load()
    }
    /// Bytes of pages and rows of states that nobody has and that hold what may be asked for again, with the host's.
    pub fn kept_bytes(&self) -> usize {
        let Load { kept_pages, kept_windows, kept_states, away_pages, .. } = self.load();
        let [all, windows] = [Part::All, Part::Window].map(|part| self.engine.row_bytes(part));
        let with_windows = if self.bounds.windows.is_some() { kept_windows } else { kept_pages + away_pages };
        ((kept_pages + away_pages) * all + with_windows * windows) * Options::PAGE
            + kept_states * self.engine.state_bytes()
    }
    /// Has a prompt wait for its turn.
    ///
    /// # Errors
    /// When it is empty, does not leave room for one more token, or has tokens that there are not.
    pub fn add(&mut self, prompt: &[u32], options: SequenceOptions) -> Result<SequenceId, Error> {
        let context = self.engine.context();
        if prompt.len() >= context {
            return Err(Error::Prompt { prompt: prompt.len(), context });
        }
        self.engine.check(prompt)?;
        Ok(self.scheduler.add(prompt.to_vec(), options))
    }
    /// Goes on with a sequence whose turn it was.
    pub fn push(&mut self, sequence: SequenceId, token: u32) {
        self.scheduler.push(sequence, token);
    }
    /// A sequence ends.
    pub fn remove(&mut self, sequence: SequenceId) {
        self.scheduler.remove(sequence);
        self.nobody_waits();
    }
    /// A sequence ends, of whose logits some were no numbers: nothing that it has computed is used again.
    pub fn spoil(&mut self, sequence: SequenceId) {
        self.scheduler.spoil(sequence);
        self.nobody_waits();
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
        self.step_with(asking, &mut |_| None)
    }
    /// As [`Batcher::step`]. Where `drawing` says of all sequences how their tokens are chosen, and the device works beside the host, the step behind this one has been started when this returns.
    ///
    /// # Errors
    /// As for [`Batcher::step`].
    pub fn step_with(&mut self, asking: &mut Asking, drawing: &mut Drawing) -> Result<Vec<Stepped>, Failed> {
        let batch = match self.ahead.under_way.take() {
            Some(batch) => batch,
            None => {
                let batch = self.scheduler.next_batch(self.pace.tokens());
                match self.start_first(&batch, drawing) {
                    Ok(true) => batch,
                    Ok(false) => return self.step_alone(batch, asking),
                    Err(error) => return Err(self.failed(error, &batch)),
                }
            }
        };
        self.read_ahead(&batch, drawing).map_err(|error| self.failed(error, &batch))
    }
    fn failed(&mut self, error: Error, batch: &Batch) -> Failed {
        let _ = self.engine.finish();
        self.ahead.forget();
        self.scheduler.let_go();
        Failed { error, sequences: self.scheduler.failed(batch) }
    }
    fn step_alone(&mut self, batch: Batch, asking: &mut Asking) -> Result<Vec<Stepped>, Failed> {
        self.ahead.drawn.clear();
        let both = batch.piece.is_some() && !batch.decodes.is_empty();
        self.steps.all += if both && !batch.mixed { 2 } else { u64::from(!batch.is_empty()) };
        self.steps.mixed += u64::from(batch.mixed);
        // The piece's last token is the first row of a step that it shares.
        let first = usize::from(batch.mixed);
        (self.chosen, self.rows) = (None, batch.decodes.len() + first);
        self.ranked.clear();
        if let Err(error) = self.run(&batch, asking) {
            return Err(self.failed(error, &batch));
        }
        self.scheduler.ran(&batch);
        let row = |(row, decode): (usize, &Decode)| {
            decode.ends.then_some(Stepped { sequence: decode.sequence, row: Some(row + first) })
        };
        let rows = batch.decodes.iter().enumerate().filter_map(row);
        let pieces = batch.piece.iter().filter(|piece| piece.ends);
        let row = batch.mixed.then_some(0);
        Ok(rows.chain(pieces.map(|piece| Stepped { sequence: piece.sequence, row })).collect())
    }
    fn run(&mut self, batch: &Batch, asking: &mut Asking) -> Result<(), Error> {
        self.run_moves(&batch.moves)?;
        let Batcher { engine, scheduler, ranks, .. } = self;
        for copy in &batch.copies {
            engine.copy_page(copy)?;
        }
        batch.states.iter().try_for_each(|copy| engine.copy_state(copy))?;
        let begun = Instant::now();
        let row = |decode: &Decode| Row {
            token: scheduler.tokens(decode.sequence)[decode.position],
            position: decode.position,
            pages: scheduler.pages(decode.sequence, decode.position),
        };
        let rows: Vec<Row> = batch.decodes.iter().map(row).collect();
        let beside = if batch.mixed { &rows[..] } else { &[] };
        let mut ask = |sequence, ends: bool| {
            let tokens = ends.then(|| scheduler.tokens(sequence));
            tokens.and_then(|tokens| asking(sequence, tokens))
        };
        // The piece first: rows leave their logits where it leaves its own.
        if let Some(piece) = &batch.piece {
            let of = engine::Piece {
                tokens: &scheduler.tokens(piece.sequence)[piece.tokens.clone()],
                position: piece.tokens.start,
                pages: scheduler.pages(piece.sequence, piece.tokens.end - 1),
                exact: piece.exact,
                ends: piece.ends,
            };
            let first = std::iter::once((piece.sequence, piece.ends));
            let all = first.chain(batch.decodes.iter().map(|d| (d.sequence, d.ends)));
            let mut ask_all = || all.clone().map(|(sequence, ends)| ask(sequence, ends)).collect();
            let left = engine.step_piece(of, beside, if *ranks { Some(&mut ask_all) } else { None })?;
            (self.piece, self.ranked) = (left.logits.unwrap_or_default(), left.ranked);
        }
        batch.snapshot.iter().try_for_each(|copy| engine.copy_state(copy))?;
        let read = Instant::now();
        let mut ask_rows = || batch.decodes.iter().map(|d| ask(d.sequence, d.ends)).collect();
        match batch.batch_invariant {
            _ if rows.is_empty() || batch.mixed => {}
            invariant if *ranks => self.ranked = engine.step_rows_ranked(&rows, invariant, &mut ask_rows)?,
            true => engine.step_rows_alike(&rows)?,
            false => engine.step_rows(&rows)?,
        }
        match &batch.piece {
            _ if rows.is_empty() => {}
            None => self.pace.answered(read.elapsed()),
            Some(piece) if batch.mixed => self.pace.took_together(piece.tokens.len(), begun.elapsed()),
            Some(piece) => self.pace.took(piece.tokens.len(), read - begun, read.elapsed()),
        }
        Ok(())
    }
    fn run_moves(&mut self, moves: &[Swap]) -> Result<(), Error> {
        for &of in moves {
            match of {
                Swap::Out { page, place } => self.engine.read_page(page, &mut self.host[place as usize])?,
                Swap::In { place, page } => {
                    self.engine.write_page(page, &self.host[place as usize])?;
                    self.steps.brought_back += 1;
                }
            }
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
        self.wait_ahead()?;
        let Some(borrowed) = self.scheduler.borrow(prompt.len(), most) else { return Ok(None) };
        let moves = self.scheduler.take_moves();
        let moved = self.run_moves(&moves);
        if moved.is_err() {
            self.scheduler.spoil_moves(&moves);
        }
        let flow = moved.and_then(|()| self.in_pieces(prompt, borrowed.pages(), most, run));
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
