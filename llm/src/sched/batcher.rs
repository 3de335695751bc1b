//! An engine that does what the scheduler says.

use super::batch::{Batch, Decode, Load, PrefillChunk, SchedulerConfig};
use super::error::Error;
use super::generation::{Generation, ModelOutput, TokenStep};
use super::in_flight::InFlight;
use super::pages::Swap;
use super::prefill_budget::PrefillBudget;
use super::scheduler::Scheduler;
use super::sequence::{SequenceId, SequenceOptions};
use crate::arch::{Logits, Options};
use crate::engine::{Chunk, DecodeRow, Engine, Step, TokenRun, TokenSource};
use crate::sampling::{Candidates, RowParams, RowSampling, SamplingMethod};
use std::ops::ControlFlow;
use std::time::Instant;

/// A sequence whose next token is to be chosen, after a step.
#[derive(Clone, Copy, Debug)]
pub struct ReadySequence {
    /// Which.
    pub sequence: SequenceId,
    /// Its row of the step; none where it was a piece in a step of its own.
    pub(super) row: Option<usize>,
}

/// How many steps of the model there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepCounts {
    /// All of them.
    pub all: u64,
    /// Those with tokens of answers and a piece of a prompt.
    pub mixed: u64,
    /// Those that were started before the one before was read.
    pub asynchronous: u64,
    /// Pages that came back from the host.
    pub kv_pages_swapped_in: u64,
}

/// A step that failed, and the sequences that ended with it.
#[derive(Debug)]
pub struct FailedStep {
    /// Why.
    pub error: Error,
    /// Who was in it. They are gone.
    pub sequences: Vec<SequenceId>,
}

/// Runs a part of a prompt on an engine. May break off.
pub type RunPart<'a> = dyn FnMut(&mut Engine, TokenRun) -> Result<ControlFlow<()>, Error> + 'a;

/// Says what is asked of the row of a sequence, whose tokens these are; nothing where its most probable token will do, or all of its logits are wanted.
pub type RowParamsFn<'a> = dyn FnMut(SequenceId, &[u32]) -> Option<RowParams> + 'a;

/// Says how a device may choose the tokens of a sequence before the host has seen the one before, and how many may still come; nothing where the host has to choose.
pub type SamplingFn<'a> = dyn FnMut(SequenceId) -> Option<(RowSampling, usize)> + 'a;

/// Many sequences of one model: prompts go in, whose next token it is comes out, and the token that was chosen goes in.
pub struct Batcher {
    pub(super) engine: Engine,
    config: SchedulerConfig,
    /// What the host's places for pages hold.
    host_cache: Vec<Vec<u8>>,
    pub(super) scheduler: Scheduler,
    pub(super) prefill_budget: PrefillBudget,
    /// Logits after the piece of the last step, and those that were asked for.
    chunk_logits: Vec<f32>,
    logits: Vec<f32>,
    /// The most probable token of each row of the last step.
    chosen: Vec<Option<u32>>,
    /// What the rows of the last step were told, and whether any are.
    candidates: Vec<Option<Candidates>>,
    uses_candidates: bool,
    pub(super) steps: StepCounts,
    pub(super) in_flight: InFlight,
}

impl Batcher {
    /// Creates a batcher over the page pool of an engine.
    pub fn new(engine: Engine) -> Batcher {
        let cache = engine.cache();
        let windows = cache.window_pages().zip(engine.model().window()).map(|(pages, seen)| [pages, seen]);
        let bounds = SchedulerConfig {
            pages: cache.pages(),
            page_size: Options::PAGE,
            window_pool: windows,
            state_rows: cache.state_rows(),
            host_slots: 0,
            max_sequences: engine.max_sequences(),
            max_chunk: engine.longest_step(),
            mixed: engine.mixes(),
        };
        Batcher {
            scheduler: Scheduler::new(bounds),
            config: bounds,
            host_cache: Vec::new(),
            prefill_budget: PrefillBudget::new(engine.chunk()),
            chunk_logits: Vec::new(),
            logits: Vec::new(),
            chosen: Vec::new(),
            candidates: Vec::new(),
            uses_candidates: engine.chooses(SamplingMethod::SmallTopK),
            steps: StepCounts::default(),
            in_flight: InFlight::new(engine.device().overlaps()),
            engine,
        }
    }
    /// With so many bytes of the host's memory, at most, for pages that leave the pool: they come back by a copy where they are asked for again. Of nobody yet.
    ///
    /// None where there is a pool of windows or of states: what a page has of those may be gone long before the page is.
    pub fn with_host_cache(self, bytes: usize) -> Batcher {
        let more = self.config.window_pool.is_some() || self.config.state_rows > 0;
        let places = if more { 0 } else { bytes / self.engine.cache().page_bytes().max(1) };
        let bounds = SchedulerConfig { host_slots: places, ..self.config };
        let host = (0..places).map(|_| Vec::new()).collect();
        Batcher { config: bounds, host_cache: host, scheduler: Scheduler::new(bounds), ..self }
    }
    /// With rows that are told what is asked of them, or not, whatever the device is better at. Tokens are the same.
    pub fn with_candidates(self, ranks: bool) -> Batcher {
        Batcher { uses_candidates: ranks, ..self }
    }
    /// With steps that are started before the one before is read, or none, whatever the device is better at. Tokens are the same.
    pub fn with_async_scheduling(self, wanted: bool) -> Batcher {
        Batcher { in_flight: InFlight::new(wanted), ..self }
    }
    /// Forgets everybody and everything: after a fault of ours, when nothing may be what it should.
    pub fn reset(&mut self) {
        // What ran may have failed as well; nothing of it is used.
        let _ = self.engine.finish();
        self.in_flight.forget();
        self.scheduler = self.scheduler.emptied();
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
    pub fn steps(&self) -> StepCounts {
        self.steps
    }
    /// How much there is to do.
    pub fn load(&self) -> Load {
        self.scheduler.load()
    }
    /// Bytes of pages and rows of states that nobody has and that hold what may be asked for again, with the host's.
    pub fn cached_bytes(&self) -> usize {
        let Load {
            cached_pages: kept_pages,
            cached_window_pages: kept_windows,
            cached_states: kept_states,
            host_pages: away_pages,
            ..
        } = self.load();
        let cache = self.engine.cache();
        (kept_pages + away_pages) * cache.page_bytes()
            + kept_windows * cache.window_page_bytes()
            + kept_states * self.engine.model().state_bytes()
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
        self.engine.check_tokens(prompt)?;
        Ok(self.scheduler.add(prompt.to_vec(), options))
    }
    /// Goes on with a sequence whose turn it was.
    pub fn push(&mut self, sequence: SequenceId, token: u32) {
        self.scheduler.push(sequence, token);
    }
    /// A sequence ends.
    pub fn remove(&mut self, sequence: SequenceId) {
        self.scheduler.remove(sequence);
        self.end_if_idle();
    }
    /// A sequence ends, of whose logits some were no numbers: nothing that it has computed is used again.
    pub fn discard(&mut self, sequence: SequenceId) {
        self.scheduler.discard(sequence);
        self.end_if_idle();
    }
    /// Is there no room for another token of it?
    pub fn is_full(&self, sequence: SequenceId) -> bool {
        self.scheduler.tokens(sequence).len() >= self.engine.context()
    }
    /// Runs the next step: whose next token is to be chosen then, before the step after. While it runs `asking` says what is asked of the rows of those.
    ///
    /// # Errors
    /// When the device fails. Those that were in the step have ended then.
    pub fn step(&mut self, row_params: &mut RowParamsFn) -> Result<Vec<ReadySequence>, FailedStep> {
        self.step_with(row_params, &mut |_| None)
    }
    /// As [`Batcher::step`]. Where `drawing` says of all sequences how their tokens are chosen, and the device works beside the host, the step behind this one has been started when this returns.
    ///
    /// # Errors
    /// As for [`Batcher::step`].
    pub fn step_with(
        &mut self,
        row_params: &mut RowParamsFn,
        sampling: &mut SamplingFn,
    ) -> Result<Vec<ReadySequence>, FailedStep> {
        let batch = match self.in_flight.batch.take() {
            Some(batch) => batch,
            None => {
                if let Err(error) = self.clear_distrusted() {
                    return Err(self.failed(error, &Batch::default()));
                }
                let batch = self.scheduler.next_batch(self.prefill_budget.tokens());
                match self.start_first(&batch, sampling) {
                    Ok(true) => batch,
                    Ok(false) => return self.step_sync(batch, row_params),
                    Err(error) => return Err(self.failed(error, &batch)),
                }
            }
        };
        self.read_in_flight(&batch, sampling).map_err(|error| self.failed(error, &batch))
    }
    /// Clears free pages that may hold NaN or infinity: contiguous steps multiply rows behind a
    /// sequence by 0.
    fn clear_distrusted(&mut self) -> Result<(), Error> {
        let [pages, windows] = self.scheduler.take_distrusted();
        match pages.is_empty() && windows.is_empty() {
            true => Ok(()),
            false => Ok(self.engine.clear_pages(&pages, &windows)?),
        }
    }
    /// May a step of one sequence read neighbouring pages without a block table? Not beside another
    /// sequence, whose rows may turn out not to be finite.
    pub(super) fn is_contiguous(&self) -> bool {
        self.scheduler.is_contiguous() && !self.scheduler.has_distrusted()
    }
    fn failed(&mut self, error: Error, batch: &Batch) -> FailedStep {
        let _ = self.engine.finish();
        self.in_flight.forget();
        self.scheduler.release_in_flight();
        FailedStep { error, sequences: self.scheduler.fail_batch(batch) }
    }
    fn step_sync(&mut self, batch: Batch, row_params: &mut RowParamsFn) -> Result<Vec<ReadySequence>, FailedStep> {
        self.in_flight.drawn.clear();
        let both = batch.chunk.is_some() && !batch.decodes.is_empty();
        self.steps.all += if both && !batch.mixed { 2 } else { u64::from(!batch.is_empty()) };
        self.steps.mixed += u64::from(batch.mixed);
        // The piece's last token is the first row of a step that it shares.
        let first = usize::from(batch.mixed);
        self.chosen.clear();
        self.candidates.clear();
        if let Err(error) = self.run(&batch, row_params) {
            return Err(self.failed(error, &batch));
        }
        self.scheduler.finish_batch(&batch);
        let row = |(row, decode): (usize, &Decode)| {
            decode.needs_logits.then_some(ReadySequence { sequence: decode.sequence, row: Some(row + first) })
        };
        let rows = batch.decodes.iter().enumerate().filter_map(row);
        let pieces = batch.chunk.iter().filter(|piece| piece.needs_logits);
        let row = batch.mixed.then_some(0);
        Ok(rows.chain(pieces.map(|piece| ReadySequence { sequence: piece.sequence, row })).collect())
    }
    fn run(&mut self, batch: &Batch, row_params: &mut RowParamsFn) -> Result<(), Error> {
        self.run_swaps(&batch.swaps)?;
        batch.copies.iter().try_for_each(|copy| self.engine.copy_page(copy))?;
        batch.states.iter().try_for_each(|copy| self.engine.copy_state(copy))?;
        let begun = Instant::now();
        // The chunk first: rows leave their logits where it leaves its own.
        if let Some(piece) = &batch.chunk {
            let beside = if batch.mixed { &batch.decodes[..] } else { &[] };
            self.run_step(Some(piece), beside, false, row_params)?;
            if piece.needs_logits && !batch.mixed {
                self.engine.row_logits(0, &mut self.chunk_logits)?;
            }
        }
        batch.snapshot.iter().try_for_each(|copy| self.engine.copy_state(copy))?;
        let read = Instant::now();
        if !batch.decodes.is_empty() && !batch.mixed {
            self.run_step(None, &batch.decodes, batch.batch_invariant, row_params)?;
        }
        match &batch.chunk {
            _ if batch.decodes.is_empty() => {}
            None => self.prefill_budget.record_decode(read.elapsed()),
            Some(piece) if batch.mixed => self.prefill_budget.record_mixed(piece.tokens.len(), begun.elapsed()),
            Some(piece) => self.prefill_budget.record_chunk(piece.tokens.len(), read - begun, read.elapsed()),
        }
        Ok(())
    }
    /// Runs one step of the engine: a prefill chunk, decode rows, or both.
    fn run_step(
        &mut self,
        piece: Option<&PrefillChunk>,
        decodes: &[Decode],
        batch_invariant: bool,
        row_params: &mut RowParamsFn,
    ) -> Result<(), Error> {
        let contiguous = self.is_contiguous();
        let Batcher { engine, scheduler, uses_candidates: ranks, .. } = self;
        let row = |decode: &Decode| DecodeRow {
            token: TokenSource::Token(scheduler.tokens(decode.sequence)[decode.position]),
            position: decode.position,
            pages: scheduler.pages(decode.sequence, decode.position),
            sampling: RowSampling::greedy(),
        };
        let rows: Vec<DecodeRow> = decodes.iter().map(row).collect();
        let chunk = piece.map(|piece| Chunk {
            tokens: &scheduler.tokens(piece.sequence)[piece.tokens.clone()],
            position: piece.tokens.start,
            pages: scheduler.pages(piece.sequence, piece.tokens.end - 1),
            exact: piece.exact,
            logits: if piece.needs_logits { Logits::Last } else { Logits::None },
        });
        let step = Step { chunk, rows: &rows, batch_invariant, contiguous };
        if !*ranks {
            (self.chosen, self.candidates) = (engine.run(&step)?.chosen, Vec::new());
            return Ok(());
        }
        let mut ask_all = || {
            let chunk = piece.iter().map(|piece| (piece.sequence, piece.needs_logits));
            let all = chunk.chain(decodes.iter().map(|decode| (decode.sequence, decode.needs_logits)));
            let ask = |(sequence, ends)| if ends { row_params(sequence, scheduler.tokens(sequence)) } else { None };
            all.map(ask).collect()
        };
        let (output, ranked) = engine.run_with_candidates(&step, &mut ask_all)?;
        (self.chosen, self.candidates) = (output.chosen, ranked);
        Ok(())
    }
    fn run_swaps(&mut self, moves: &[Swap]) -> Result<(), Error> {
        for &of in moves {
            match of {
                Swap::Out { page, slot: place } => self.engine.read_page(page, &mut self.host_cache[place as usize])?,
                Swap::In { slot: place, page } => {
                    self.engine.write_page(page, &self.host_cache[place as usize])?;
                    self.steps.kv_pages_swapped_in += 1;
                }
            }
        }
        Ok(())
    }
    /// The most probable token after a sequence; none where only its logits can tell.
    pub fn most_probable(&self, of: ReadySequence) -> Option<u32> {
        *self.chosen.get(of.row?)?
    }
    /// What was asked of the row of a sequence whose turn it is; nothing where nothing was, or the host is better at looking at all of its logits.
    pub fn candidates(&self, of: ReadySequence) -> Option<&Candidates> {
        self.candidates.get(of.row?)?.as_ref()
    }
    /// The logits after a sequence whose turn it is.
    ///
    /// # Errors
    /// When the device fails.
    pub fn logits(&mut self, of: ReadySequence) -> Result<&[f32], Error> {
        match of.row {
            None => Ok(&self.chunk_logits),
            Some(row) => {
                self.engine.row_logits(row, &mut self.logits)?;
                Ok(&self.logits)
            }
        }
    }
    /// Runs a whole prompt in pages of its own, in parts of at most `most` tokens. `None` where there are
    /// not enough pages now.
    ///
    /// # Errors
    /// When the prompt does not fit or has tokens that there are not, or the device fails.
    pub fn run_uncached(
        &mut self,
        prompt: &[u32],
        most: usize,
        run: &mut RunPart,
    ) -> Result<Option<ControlFlow<()>>, Error> {
        let context = self.engine.context();
        if prompt.len() > context {
            return Err(Error::Prompt { prompt: prompt.len(), context });
        }
        self.engine.check_tokens(prompt)?;
        self.wait_in_flight()?;
        self.clear_distrusted()?;
        let Some(borrowed) = self.scheduler.borrow(prompt.len(), most) else { return Ok(None) };
        let moves = self.scheduler.take_swaps();
        let moved = self.run_swaps(&moves);
        if moved.is_err() {
            self.scheduler.invalidate_swaps(&moves);
        }
        let (pages, contiguous) = (borrowed.pages(), self.scheduler.is_idle() && !self.scheduler.has_distrusted());
        let mut in_parts = |engine: &mut Engine| {
            for (nth, tokens) in prompt.chunks(most).enumerate() {
                if run(engine, TokenRun { tokens, position: nth * most, pages, contiguous })?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        let flow = moved.and_then(|()| in_parts(&mut self.engine));
        // Its rows may not be finite, whatever became of it.
        self.scheduler.return_borrowed(&borrowed);
        flow.map(Some)
    }
    /// Chooses the next token of a generation from a step's output, and advances the generation.
    /// `on_logits` is called where the host must read the row of logits.
    ///
    /// # Errors
    /// When the choice or the constraint fails. The sequence is not to be used again then.
    pub fn choose(
        &mut self,
        of: ReadySequence,
        generation: &mut Generation<'_>,
        on_logits: &mut dyn FnMut(&[f32]),
    ) -> Result<TokenStep, Error> {
        let context = self.engine.context();
        let history = self.scheduler.tokens(of.sequence);
        let token = match (self.drawn(of), self.candidates(of)) {
            (Some(token), _) => Some(token),
            (None, Some(ranked)) => generation.choose_from_candidates(ranked, history),
            (None, None) if generation.is_greedy() => self.most_probable(of),
            (None, None) => None,
        };
        if let Some(token) = token {
            return generation.take(ModelOutput::Token(token), history, context);
        }
        let logits = match of.row {
            None => &self.chunk_logits,
            Some(row) => {
                self.engine.row_logits(row, &mut self.logits)?;
                &self.logits
            }
        };
        on_logits(logits);
        generation.take(ModelOutput::Logits(logits), history, context)
    }
}
