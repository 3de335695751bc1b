//! Runs the scheduler's batches on an engine.

use super::batch::{Batch, Decode, DraftRow, Load, PrefillChunk, SchedulerConfig};
use super::error::Error;
use super::generation::{Generation, ModelOutput, TokenStep};
use super::in_flight::InFlight;
use super::pages::Swap;
use super::prefill_budget::PrefillBudget;
use super::prefix_log::PrefixEvent;
use super::scheduler::Scheduler;
use super::sequence::{SequenceId, SequenceOptions};
use super::speculation::{DraftSources, Speculation, SpeculationStats};
use crate::arch::{AdapterScales, Logits, Options};
use crate::engine::{Chunk, DecodeRow, Engine, PageCopy, Pages, Step, TokenRun, TokenSource};
use crate::sampling::{Candidates, RowParams, RowSampling, SamplingMethod};
use gristmill_uop::clock::Instant;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// A sequence that is ready for its next token after a step.
#[derive(Clone, Copy, Debug)]
pub struct ReadySequence {
    /// The sequence to choose a token for.
    pub sequence: SequenceId,
    /// Its row of the step; `None` for a chunk that ran in a step of its own.
    pub(super) row: Option<usize>,
}

/// Numbers of engine steps and swapped-in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepCounts {
    /// All steps of the engine.
    pub all: u64,
    /// Mixed batches: decode rows and a prefill chunk in one step.
    pub mixed: u64,
    /// Steps that started before the previous step's tokens were read.
    pub asynchronous: u64,
    /// Pages swapped in from the host KV cache.
    pub kv_pages_swapped_in: u64,
}

/// A step that failed, and the sequences that ended with it.
#[derive(Debug)]
pub struct FailedStep {
    /// Cause of the failure.
    pub error: Error,
    /// Sequences of the step, which have been removed.
    pub sequences: Vec<SequenceId>,
}

/// Runs a part of a prompt on an engine, and may stop early.
pub type RunPart<'a> = dyn FnMut(&mut Engine, TokenRun) -> Result<ControlFlow<()>, Error> + 'a;

/// Returns the sampling parameters for the row of a sequence with the given tokens.
///
/// `None` if the most probable token suffices or all logits are needed.
pub type RowParamsFn<'a> = dyn FnMut(SequenceId, &[u32]) -> Option<RowParams> + 'a;

/// Returns how the device samples a sequence's tokens, and how many more tokens it may have.
///
/// `None` if the host must choose.
pub type SamplingFn<'a> = dyn FnMut(SequenceId) -> Option<(RowSampling, usize)> + 'a;

/// Runs many sequences of one model by continuous batching. The caller adds prompts, chooses each
/// next token from a step's output, and pushes it.
pub struct Batcher {
    pub(super) engine: Engine,
    config: SchedulerConfig,
    /// Slots of the host KV cache: the bytes of one page each.
    host_cache: Vec<Vec<u8>>,
    pub(super) scheduler: Scheduler,
    pub(super) prefill_budget: PrefillBudget,
    /// Logits after the last step's chunk, and those last read for a row.
    chunk_logits: Vec<f32>,
    logits: Vec<f32>,
    /// Hidden row of the last token of a sequence that reads it.
    hidden: Option<(SequenceId, Vec<f32>)>,
    /// The token that the last step chose for each row.
    chosen: Vec<Option<u32>>,
    /// Candidates of the last step's rows, and whether the device computes them.
    candidates: Vec<Option<Candidates>>,
    uses_candidates: bool,
    pub(super) steps: StepCounts,
    pub(super) in_flight: InFlight,
    pub(super) speculation: Speculation,
}

impl Batcher {
    /// Creates a batcher over the page pool of an engine.
    pub fn new(engine: Engine) -> Batcher {
        let cache = engine.cache();
        let windows = cache
            .window_pages()
            .zip(engine.model().window())
            .map(|(pages, seen)| [pages, seen]);
        let config = SchedulerConfig {
            pages: cache.pages(),
            page_size: Options::PAGE,
            window_pool: windows,
            state_rows: cache.state_rows(),
            host_slots: 0,
            max_sequences: engine.max_sequences(),
            max_chunk: engine.longest_run(),
            mixed: engine.supports_mixed_batches(),
        };
        Batcher {
            scheduler: Scheduler::new(config),
            config,
            host_cache: Vec::new(),
            prefill_budget: PrefillBudget::new(engine.chunk()),
            chunk_logits: Vec::new(),
            logits: Vec::new(),
            hidden: None,
            chosen: Vec::new(),
            candidates: Vec::new(),
            uses_candidates: engine.supports_sampling(SamplingMethod::SmallTopK),
            steps: StepCounts::default(),
            in_flight: InFlight::new(engine.overlaps()),
            speculation: Speculation::default(),
            engine,
        }
    }
    /// Runs drafts of next tokens in rows that steps have to spare: see [`Speculation`]. With
    /// recurrent states, only those of a sequence that runs alone.
    pub fn with_speculation(mut self, sources: DraftSources) -> Batcher {
        if !sources.is_empty() {
            let speculation = Speculation::new(self.engine.step_rows(), sources);
            let speculation = speculation.running_again(self.config.state_rows > 0);
            self.speculation = speculation.with_kept_times(&self.engine);
        }
        self
    }
    /// Returns the drafted token that would follow a sequence's tokens, if its row has run: pushing
    /// it saves a step.
    pub fn next_draft(&self, sequence: SequenceId) -> Option<u32> {
        self.speculation.next_draft(sequence)
    }
    /// Numbers of drafted and kept tokens of a sequence that runs.
    pub fn drafts_of(&self, sequence: SequenceId) -> [usize; 2] {
        self.speculation.drafts_of(sequence)
    }
    /// Seconds of steps by their rows, and of steps of the model that drafts, as they decide on
    /// drafts.
    pub fn step_times(&self) -> [BTreeMap<usize, f64>; 2] {
        self.speculation.known_times()
    }
    /// Numbers of drafted and kept tokens since creation.
    pub fn speculation(&self) -> SpeculationStats {
        self.speculation.stats
    }
    /// Adds a host KV cache of at most `bytes` bytes for pages that leave the pool; a prefix hit
    /// swaps them in again. Call it before sequences are added.
    ///
    /// There is no host cache with a window pool or recurrent states, as these may be
    /// evicted before their page, and none for a text encoder, which has no KV cache.
    pub fn with_host_cache(self, bytes: usize) -> Batcher {
        let more = self.config.window_pool.is_some() || self.config.state_rows > 0;
        let slots = match more {
            true => None,
            false => bytes.checked_div(self.engine.cache().page_bytes()),
        };
        let slots = slots.unwrap_or(0);
        let config = SchedulerConfig {
            host_slots: slots,
            ..self.config
        };
        let host = (0..slots).map(|_| Vec::new()).collect();
        Batcher {
            config,
            host_cache: host,
            scheduler: Scheduler::new(config),
            ..self
        }
    }
    /// Records changes of the prefix cache, which [`Batcher::take_prefix_events`] returns. Call it
    /// before sequences are added.
    pub fn with_prefix_events(mut self) -> Batcher {
        self.scheduler.watch_prefixes();
        self
    }
    /// Takes the recorded changes of the prefix cache.
    pub fn take_prefix_events(&mut self) -> Vec<PrefixEvent> {
        self.scheduler.take_prefix_events()
    }
    /// Overrides whether the device computes sampling candidates. The tokens are the same.
    pub fn with_candidates(self, ranks: bool) -> Batcher {
        Batcher {
            uses_candidates: ranks,
            ..self
        }
    }
    /// Overrides whether steps start before the previous step is read. The tokens are the same.
    pub fn with_async_scheduling(self, wanted: bool) -> Batcher {
        Batcher {
            in_flight: InFlight::new(wanted),
            ..self
        }
    }
    /// Removes all sequences and empties the prefix cache, after an internal error.
    pub fn reset(&mut self) {
        // The step in flight may fail too; its result is not used.
        let _ = self.engine.finish();
        self.in_flight.forget();
        self.speculation.forget_rows();
        self.scheduler = self.scheduler.emptied();
    }
    /// The engine that runs the batches.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
    /// The scheduler that plans the batches.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
    /// Step counts since creation.
    pub fn steps(&self) -> StepCounts {
        self.steps
    }
    /// Load of the scheduler.
    pub fn load(&self) -> Load {
        self.scheduler.load()
    }
    /// Bytes of unreferenced prefix-cache pages and state snapshots, including the host KV cache.
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
    /// Queues the prompt of a new sequence.
    ///
    /// # Errors
    /// When the prompt is empty, leaves no room for another token, or has
    /// ids outside the vocabulary.
    pub fn add(&mut self, prompt: &[u32], options: SequenceOptions) -> Result<SequenceId, Error> {
        let context = self.engine.context();
        if prompt.len() >= context {
            return Err(Error::Prompt {
                prompt: prompt.len(),
                context,
            });
        }
        self.engine.check_tokens(prompt)?;
        Ok(self.scheduler.add(prompt.to_vec(), options))
    }
    /// Appends the chosen token to a sequence.
    pub fn push(&mut self, sequence: SequenceId, token: u32) {
        self.scheduler.push(sequence, token);
    }
    /// Removes a sequence; its pages stay in the prefix cache.
    pub fn remove(&mut self, sequence: SequenceId) {
        self.scheduler.remove(sequence);
        self.end_if_idle();
    }
    /// Removes a sequence that produced non-finite logits; its pages are not reused.
    pub fn discard(&mut self, sequence: SequenceId) {
        self.scheduler.discard(sequence);
        self.end_if_idle();
    }
    /// Returns whether the context has no room for another token of the sequence.
    pub fn is_full(&self, sequence: SequenceId) -> bool {
        self.scheduler.tokens(sequence).len() >= self.engine.context()
    }
    /// Runs the next step and returns the sequences that are ready for a token. Choose and push
    /// their tokens before the next step.
    ///
    /// `row_params` is called while the step runs.
    ///
    /// # Errors
    /// When the device fails. The sequences of the step have been removed then.
    pub fn step(&mut self, row_params: &mut RowParamsFn) -> Result<Vec<ReadySequence>, FailedStep> {
        self.step_with(row_params, &mut |_| None)
    }
    /// Runs the next step as [`Batcher::step`] does, with asynchronous scheduling.
    ///
    /// If `sampling` covers all sequences and the device runs asynchronously, the following step
    /// has been started on return.
    ///
    /// # Errors
    /// As for [`Batcher::step`].
    pub fn step_with(
        &mut self,
        row_params: &mut RowParamsFn,
        sampling: &mut SamplingFn,
    ) -> Result<Vec<ReadySequence>, FailedStep> {
        let verified = self.speculation.verified(&mut self.scheduler).into_iter();
        let verified = verified.map(|(sequence, row)| ReadySequence {
            sequence,
            row: Some(row),
        });
        let verified: Vec<ReadySequence> = verified.collect();
        if !verified.is_empty() {
            return Ok(verified);
        }
        let batch = match self.in_flight.batch.take() {
            Some(batch) => batch,
            None => {
                if let Err(error) = self.clear_distrusted() {
                    return Err(self.fail_step(error, &Batch::default()));
                }
                let mut batch = self.scheduler.next_batch(self.prefill_budget.tokens());
                if self.speculation.is_on()
                    && let Err(error) = self.plan_drafts(&mut batch)
                {
                    return Err(self.fail_step(error, &batch));
                }
                match self.start_in_flight(&batch, sampling) {
                    Ok(true) => batch,
                    Ok(false) => return self.step_sync(batch, row_params),
                    Err(error) => return Err(self.fail_step(error, &batch)),
                }
            }
        };
        self.read_in_flight(&batch, sampling)
            .map_err(|error| self.fail_step(error, &batch))
    }
    /// Clears free pages that may hold NaN or infinity: contiguous steps multiply rows past the end
    /// of a sequence by 0.
    fn clear_distrusted(&mut self) -> Result<(), Error> {
        let [pages, windows] = self.scheduler.take_distrusted();
        match pages.is_empty() && windows.is_empty() {
            true => Ok(()),
            false => Ok(self.engine.clear_pages(&pages, &windows)?),
        }
    }
    /// Returns whether a step of one sequence may read consecutive pages without a block table. Not
    /// if other sequences run, since their rows may turn out not to be finite.
    pub(super) fn is_contiguous(&self) -> bool {
        self.scheduler.is_contiguous() && !self.scheduler.has_distrusted()
    }
    fn fail_step(&mut self, error: Error, batch: &Batch) -> FailedStep {
        let _ = self.engine.finish();
        self.in_flight.forget();
        self.speculation.forget_rows();
        self.scheduler.release_in_flight();
        FailedStep {
            error,
            sequences: self.scheduler.fail_batch(batch),
        }
    }
    fn step_sync(
        &mut self,
        batch: Batch,
        row_params: &mut RowParamsFn,
    ) -> Result<Vec<ReadySequence>, FailedStep> {
        self.in_flight.drawn.clear();
        let both = batch.chunk.is_some() && !batch.decodes.is_empty();
        self.steps.all += if both && !batch.mixed {
            2
        } else {
            u64::from(!batch.is_empty())
        };
        self.steps.mixed += u64::from(batch.mixed);
        // In a mixed batch the chunk's last token is the first row.
        let first = usize::from(batch.mixed);
        self.chosen.clear();
        self.candidates.clear();
        if let Err(error) = self.run(&batch, row_params) {
            return Err(self.fail_step(error, &batch));
        }
        self.scheduler.finish_batch(&batch);
        let row = |(row, decode): (usize, &Decode)| {
            decode.needs_logits.then_some(ReadySequence {
                sequence: decode.sequence,
                row: Some(row + first),
            })
        };
        let rows = batch.decodes.iter().enumerate().filter_map(row);
        let chunks = batch.chunk.iter().filter(|chunk| chunk.needs_logits);
        let row = match &batch.chunk {
            Some(chunk) if batch.verifies => Some(chunk.tokens.len() - 1),
            _ => batch.mixed.then_some(0),
        };
        Ok(rows
            .chain(chunks.map(|chunk| ReadySequence {
                sequence: chunk.sequence,
                row,
            }))
            .collect())
    }
    fn run(&mut self, batch: &Batch, row_params: &mut RowParamsFn) -> Result<(), Error> {
        self.run_swaps(&batch.swaps)?;
        batch
            .copies
            .iter()
            .try_for_each(|copy| self.copy_page(copy))?;
        batch
            .states
            .iter()
            .try_for_each(|copy| self.engine.copy_state(copy))?;
        let begun = Instant::now();
        // The chunk runs first, since decode rows overwrite its logits.
        if let Some(chunk) = batch.chunk.as_ref().filter(|_| batch.verifies) {
            self.run_drafted(chunk, &batch.drafts)?;
        } else if let Some(chunk) = &batch.chunk {
            let beside = if batch.mixed { &batch.decodes[..] } else { &[] };
            self.run_step(Some(chunk), (beside, &[]), false, row_params)?;
            let hidden = self.scheduler.reads_hidden(chunk.sequence);
            if chunk.needs_logits && !batch.mixed && !hidden {
                self.engine.row_logits(0, &mut self.chunk_logits)?;
            }
            self.read_hidden(chunk)?;
        }
        batch
            .snapshot
            .iter()
            .try_for_each(|copy| self.engine.copy_state(copy))?;
        let read = Instant::now();
        if !batch.decodes.is_empty() && !batch.mixed {
            let rows = (&batch.decodes[..], &batch.drafts[..]);
            self.run_step(None, rows, batch.batch_invariant, row_params)?;
        }
        let of_chunk = batch.chunk.as_ref().map_or(0, |chunk| chunk.tokens.len());
        if (batch.chunk.is_none() || batch.verifies) && self.speculation.is_on() {
            let rows = of_chunk + batch.decodes.len() + batch.drafts.len();
            let seconds = begun.elapsed().as_secs_f64();
            let captures = self.engine.captures();
            // A step that waited for drafts and got none would have been started earlier.
            let waited = std::mem::take(&mut self.speculation.waited);
            if batch.drafts.is_empty() && waited {
                self.speculation.interrupt();
            } else {
                self.speculation.record(rows, seconds, captures);
            }
        } else {
            self.speculation.interrupt();
        }
        match &batch.chunk {
            _ if batch.decodes.is_empty() => {}
            None if !batch.drafts.is_empty() => {}
            None => self.prefill_budget.record_decode(read.elapsed()),
            Some(chunk) if batch.mixed => self
                .prefill_budget
                .record_mixed(chunk.tokens.len(), begun.elapsed()),
            Some(chunk) => {
                self.prefill_budget
                    .record_chunk(chunk.tokens.len(), read - begun, read.elapsed())
            }
        }
        Ok(())
    }
    fn copy_page(&mut self, copy: &PageCopy) -> Result<(), Error> {
        let drafter = self.speculation.drafter.as_mut();
        drafter.map_or(Ok(()), |drafter| drafter.copy_page(copy))?;
        Ok(self.engine.copy_page(copy)?)
    }
    /// Reads the hidden row of a chunk's last token, after its step, for a sequence that wants it.
    fn read_hidden(&mut self, chunk: &PrefillChunk) -> Result<(), Error> {
        self.hidden = None;
        if chunk.needs_logits && self.scheduler.reads_hidden(chunk.sequence) {
            self.hidden = Some((chunk.sequence, self.engine.last_hidden_row()?));
        }
        Ok(())
    }
    /// Runs a chunk of a sequence that decodes, and drafts after it.
    fn run_drafted(&mut self, chunk: &PrefillChunk, drafts: &[DraftRow]) -> Result<(), Error> {
        let own = &self.scheduler.tokens(chunk.sequence)[chunk.tokens.clone()];
        let drafted = drafts.iter().map(|draft| draft.token);
        let tokens: Vec<u32> = own.iter().copied().chain(drafted).collect();
        let last = chunk.tokens.start + tokens.len() - 1;
        let step = Step {
            chunk: Some(Chunk {
                tokens: &tokens,
                position: chunk.tokens.start,
                pages: self.scheduler.pages(chunk.sequence, last),
                exact: false,
                logits: Logits::All,
                fills_drafts: false,
            }),
            drafted: Some(drafts.len()),
            // Contiguous steps are captured for each row of states.
            contiguous: false,
            ..Step::default()
        };
        self.chosen = self.engine.run(&step)?.chosen;
        self.speculation
            .record_hidden_of_drafted(chunk, drafts.len());
        Ok(())
    }
    /// Runs one step of the engine: a prefill chunk, decode rows, or both.
    fn run_step(
        &mut self,
        prefill: Option<&PrefillChunk>,
        (decodes, drafts): (&[Decode], &[DraftRow]),
        batch_invariant: bool,
        row_params: &mut RowParamsFn,
    ) -> Result<(), Error> {
        let contiguous = self.is_contiguous();
        let chunk_of = prefill.map(|chunk| chunk.sequence);
        let fills = chunk_of.is_some_and(|id| self.speculation.fills_drafts(&self.scheduler, id));
        let Batcher {
            engine,
            scheduler,
            uses_candidates: ranks,
            ..
        } = self;
        let row = |decode: &Decode| DecodeRow {
            token: TokenSource::Token(scheduler.tokens(decode.sequence)[decode.position]),
            position: decode.position,
            pages: scheduler.pages(decode.sequence, decode.position),
            sampling: RowSampling::greedy(),
        };
        let drafted = |draft: &DraftRow| DecodeRow {
            token: TokenSource::Token(draft.token),
            position: draft.position,
            pages: scheduler.pages(draft.sequence, draft.position),
            sampling: RowSampling::greedy(),
        };
        let rows = decodes.iter().map(row).chain(drafts.iter().map(drafted));
        let rows: Vec<DecodeRow> = rows.collect();
        let chunk = prefill.map(|chunk| Chunk {
            tokens: &scheduler.tokens(chunk.sequence)[chunk.tokens.clone()],
            position: chunk.tokens.start,
            pages: scheduler.pages(chunk.sequence, chunk.tokens.end - 1),
            exact: chunk.exact,
            // Pooling reads the hidden row in place of logits.
            logits: match chunk.needs_logits && !scheduler.reads_hidden(chunk.sequence) {
                true => Logits::Last,
                false => Logits::None,
            },
            fills_drafts: fills,
        });
        let step = Step {
            chunk,
            rows: &rows,
            batch_invariant,
            drafted: None,
            contiguous,
        };
        if !*ranks {
            (self.chosen, self.candidates) = (engine.run(&step)?.chosen, Vec::new());
            self.record_hidden(prefill, (decodes, drafts));
            return Ok(());
        }
        let rows = (decodes, drafts);
        let mut ask_all = || asked_params(scheduler, prefill, rows, row_params);
        let (output, ranked) = engine.run_with_candidates(&step, &mut ask_all)?;
        (self.chosen, self.candidates) = (output.chosen, ranked);
        self.record_hidden(prefill, (decodes, drafts));
        Ok(())
    }
    /// Records where the hidden rows of the step that has just run are.
    fn record_hidden(&mut self, prefill: Option<&PrefillChunk>, rows: (&[Decode], &[DraftRow])) {
        let chunk_rows = self.engine.last_chunk_tokens();
        self.speculation
            .record_hidden((prefill, chunk_rows), rows, &self.scheduler);
    }
    fn run_swaps(&mut self, swaps: &[Swap]) -> Result<(), Error> {
        for &of in swaps {
            match of {
                Swap::Out { page, slot } => self
                    .engine
                    .read_page(page, &mut self.host_cache[slot as usize])?,
                Swap::In { slot, page } => {
                    self.engine
                        .write_page(page, &self.host_cache[slot as usize])?;
                    self.steps.kv_pages_swapped_in += 1;
                }
            }
        }
        Ok(())
    }
    /// Returns the most probable next token of a sequence; `None` if it must be
    /// determined from the logits.
    pub fn most_probable(&self, of: ReadySequence) -> Option<u32> {
        *self.chosen.get(of.row?)?
    }
    /// Returns the candidates of a sequence's row; `None` if none were requested or
    /// all logits are needed.
    pub fn candidates(&self, of: ReadySequence) -> Option<&Candidates> {
        self.candidates.get(of.row?)?.as_ref()
    }
    /// Returns the hidden row of a ready sequence's last prompt token, `[width]`: the last layer's
    /// output before the final norm. `None` unless [`SequenceOptions::hidden`] is set.
    pub fn hidden_row(&self, of: ReadySequence) -> Option<&[f32]> {
        let (id, row) = self.hidden.as_ref()?;
        (*id == of.sequence).then_some(row)
    }
    /// Reads the logits of a ready sequence.
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
    /// Runs a whole prompt with these adapters in borrowed pages, in parts of at most `most`
    /// tokens. Returns `None` if there are not enough free pages.
    ///
    /// # Errors
    /// When the prompt does not fit or has ids outside the vocabulary, or the device fails.
    pub fn run_uncached(
        &mut self,
        (prompt, adapters): (&[u32], AdapterScales),
        most: usize,
        run: &mut RunPart,
    ) -> Result<Option<ControlFlow<()>>, Error> {
        let context = self.engine.context();
        if prompt.len() > context {
            return Err(Error::Prompt {
                prompt: prompt.len(),
                context,
            });
        }
        self.engine.check_tokens(prompt)?;
        self.wait_in_flight()?;
        self.speculation.forget_rows();
        self.clear_distrusted()?;
        let Some(borrowed) = self.scheduler.borrow(prompt.len(), most) else {
            return Ok(None);
        };
        let moves = self.scheduler.take_swaps();
        let moved = self.run_swaps(&moves);
        if moved.is_err() {
            self.scheduler.invalidate_swaps(&moves);
        }
        let (pages, contiguous) = (
            Pages {
                adapters,
                ..borrowed.pages()
            },
            self.scheduler.is_idle() && !self.scheduler.has_distrusted(),
        );
        let mut in_parts = |engine: &mut Engine| {
            for (nth, tokens) in prompt.chunks(most).enumerate() {
                if run(
                    engine,
                    TokenRun {
                        tokens,
                        position: nth * most,
                        pages,
                        contiguous,
                    },
                )?
                .is_break()
                {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        let flow = moved.and_then(|()| in_parts(&mut self.engine));
        // The rows may not be finite, even if the run succeeded.
        self.scheduler.return_borrowed(&borrowed);
        flow.map(Some)
    }
    /// Runs texts through a text encoder: see [`Engine::encode`].
    ///
    /// # Errors
    /// As for [`Engine::encode`].
    pub fn encode(
        &mut self,
        texts: &[Vec<u32>],
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        Ok(self.engine.encode(texts, each)?)
    }
    /// Chooses the next token of a generation from a step's output, and advances the generation.
    /// `on_logits` is called if the host must read the row of logits.
    ///
    /// # Errors
    /// When sampling or the constraint fails. The sequence must not be used again then.
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

/// Returns the sampling parameters of all rows of a step with logits: of a prompt's part, of decode
/// rows, and of drafts.
fn asked_params(
    scheduler: &Scheduler,
    prefill: Option<&PrefillChunk>,
    (decodes, drafts): (&[Decode], &[DraftRow]),
    row_params: &mut RowParamsFn,
) -> Vec<Option<RowParams>> {
    let chunk = prefill.map(|chunk| (chunk.sequence, chunk.needs_logits));
    let rows = decodes.iter().map(|of| (of.sequence, of.needs_logits));
    let mut asked = Vec::new();
    for (sequence, ends) in chunk.into_iter().chain(rows) {
        let params = ends.then(|| row_params(sequence, scheduler.tokens(sequence)));
        asked.push(params.flatten());
    }
    // The row behind a draft is used if the sequence's tokens are those before it then.
    let mut tokens: Vec<u32> = Vec::new();
    for (nth, draft) in drafts.iter().enumerate() {
        if nth == 0 || drafts[nth - 1].sequence != draft.sequence {
            tokens = scheduler.tokens(draft.sequence).to_vec();
        }
        tokens.push(draft.token);
        asked.push(row_params(draft.sequence, &tokens));
    }
    asked
}
