//! The engine and the execution of a step: check, choose a graph, write its inputs, start it, wait.

use super::device_buffers::DeviceBuffers;
use super::expert_cache::ExpertCache;
use super::expert_stream::ExpertStream;
use super::graph_key::{GraphKey, Settings, batch_graph};
use super::graphs::{CaptureKey, Graphs, StepKey, Tokens, Variables};
use super::inputs::IN_FLIGHT;
use super::kv_cache::KvCache;
use super::pages::Pages;
use super::step::{Chunk, DecodeRow, Step, StepOutput, TokenSource};
use super::step_limit::StepLimit;
use crate::arch::{DraftOptions, Logits, Model, Options};
use crate::error::Error;
use crate::placement::PlacementChoice;
use crate::sampling::{CandidateSet, Candidates, DeviceSampler, RowParams};
use gristmill_runtime::Device;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A step that was started but not yet waited for.
pub(super) struct RunningStep {
    key: StepKey,
    /// Rows of logits that a token is chosen from.
    rows: usize,
}

/// A loaded model, ready to run steps.
pub struct Engine {
    pub(super) model: Box<dyn Model>,
    pub(super) settings: Settings,
    pub(super) context: usize,
    pub(super) cache: KvCache,
    pub(super) graphs: Graphs,
    pub(super) placement: PlacementChoice,
    pub(super) stream: ExpertStream,
    /// Uses of experts on another device, and those that the main device holds.
    pub(super) expert_cache: Arc<Mutex<ExpertCache>>,
    /// By device; the first is the main device's.
    pub(super) on: Vec<DeviceBuffers>,
    pub(super) in_flight: VecDeque<RunningStep>,
    pub(super) candidates: Option<DeviceSampler>,
    /// Tokens of the last step's prefill chunk, or of the last part of one that was split.
    pub(super) chunk_tokens: usize,
    pub(super) limit: StepLimit,
    /// Context depths with their own decode graphs, ascending; the last covers all positions.
    pub(super) depths: Vec<usize>,
}

/// Parts of a long prompt on which several devices work at a time.
const PIECES: usize = 4;
/// Least tokens of such a part: smaller ones read the experts' weights too often.
const LEAST_PIECE: usize = 1024;

/// A checked step: its graph, variables, and block tables.
struct CheckedStep<'a> {
    key: StepKey,
    variables: Variables,
    tables: Vec<Pages<'a>>,
}

impl Engine {
    /// Runs a step and waits for it.
    ///
    /// # Errors
    /// When a token, position or page is out of range, there are too many rows, or the device
    /// fails. The KV rows that the step wrote must not be used then.
    pub fn run(&mut self, step: &Step) -> Result<StepOutput, Error> {
        self.finish()?;
        let step = self.split(step)?;
        self.start_alone(&step)?;
        let output = self.wait_for_last()?;
        self.fill_draft_cache(&step)?;
        Ok(output)
    }
    /// Runs a step and computes the sampling candidates of its rows. `ask` is called while the step
    /// runs and returns the parameters of each row.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    pub fn run_with_candidates(
        &mut self,
        step: &Step,
        ask: &mut dyn FnMut() -> Vec<Option<RowParams>>,
    ) -> Result<(StepOutput, Vec<Option<Candidates>>), Error> {
        self.finish()?;
        let step = self.split(step)?;
        if step.rows.is_empty() {
            self.start_alone(&step)?;
            let output = self.wait_for_last()?;
            self.fill_draft_cache(&step)?;
            return Ok((output, Vec::new()));
        }
        // With a chunk, its last token and every decode row have logits.
        let most = match (&step.chunk, step.rows.len()) {
            (Some(_), _) => self.settings.rows(),
            (None, n) => self.batch_bucket(n, step.batch_invariant),
        };
        self.prepare_candidates(most)?;
        self.start_alone(&step)?;
        let row_params = ask();
        let asked = self.start_candidates(most, &row_params);
        // Wait for the step even if the candidates failed.
        let ended = self.wait_for_last();
        let ranked = asked.and_then(|()| self.wait_for_candidates(most, &row_params));
        let output = (ended?, ranked?);
        self.fill_draft_cache(&step)?;
        Ok(output)
    }
    /// Starts a step. Returns false, without starting it, if it must wait for the steps in flight:
    /// it has a prefill chunk, both slots are taken, or something is not yet captured or filled.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    pub fn start(&mut self, step: &Step) -> Result<bool, Error> {
        if self.in_flight.is_empty() {
            self.check(step)?;
            let key = self.prepared(step).key;
            self.prepare(&key, &|_| ())?;
            self.prepare_followers(&key)?;
            self.start_alone(step)?;
            return Ok(true);
        }
        self.check(step)?;
        let CheckedStep {
            key,
            variables,
            tables,
        } = self.prepared(step);
        let waits = step.chunk.is_some() || self.in_flight.len() >= IN_FLIGHT;
        let ready = self.main().activations.has_rope(last_position(step) + 1)
            && self.graphs.has(&CaptureKey::Step(key));
        if waits || !ready {
            return Ok(false);
        }
        self.write_inputs(step, &key, &tables)?;
        self.replay(step, key, &variables)?;
        Ok(true)
    }
    /// Starts a step while none is in flight, except parts of the same prompt.
    fn start_alone(&mut self, step: &Step) -> Result<(), Error> {
        let (key, variables) = self.prepare_single(step)?;
        self.replay(step, key, &variables)
    }
    pub(super) fn replay(
        &mut self,
        step: &Step,
        key: StepKey,
        variables: &Variables,
    ) -> Result<(), Error> {
        self.graphs
            .prepared(&CaptureKey::Step(key))
            .replay
            .start(variables)?;
        let chunk = step.chunk.map_or(0, |chunk| match step.drafted {
            Some(_) => chunk.tokens.len(),
            None => 1,
        });
        let rows = key.among.map_or(0, |_| step.rows.len() + chunk);
        self.in_flight.push_back(RunningStep { key, rows });
        Ok(())
    }
    /// Captures the steps that can follow this one and read its chosen tokens, for both input sets.
    fn prepare_followers(&mut self, key: &StepKey) -> Result<(), Error> {
        let has_drafts = key.graph.logits == Logits::Drafted;
        if key.among.is_none() || has_drafts || key.graph.others > 0 || !self.overlaps() {
            return Ok(());
        }
        let tokens = if key.graph.batch {
            Tokens::Gathered
        } else {
            Tokens::Chosen
        };
        (0..IN_FLIGHT).try_for_each(|set| {
            self.prepare(
                &StepKey {
                    set,
                    tokens,
                    ..*key
                },
                &|_| (),
            )
        })
    }
    /// Checks a step, captures its graph and writes its inputs, while nothing else runs, except
    /// parts of the same prompt.
    pub(super) fn prepare_single(&mut self, step: &Step) -> Result<(StepKey, Variables), Error> {
        self.prepare_step(step, None)
    }
    /// Prepares a step as [`Engine::prepare_single`] does, or one of the draft block.
    pub(super) fn prepare_step(
        &mut self,
        step: &Step,
        draft: Option<DraftOptions>,
    ) -> Result<(StepKey, Variables), Error> {
        self.check(step)?;
        let CheckedStep {
            mut key,
            variables,
            tables,
        } = self.prepared(step);
        key.graph.draft = draft;
        // Tokens of drafts may be at the position after that of their rows.
        self.fill_rope(last_position(step) + 1 + usize::from(draft.is_some()))?;
        self.prepare(&key, &|_| ())?;
        self.write_inputs(step, &key, &tables)?;
        Ok((key, variables))
    }
    /// Fills the RoPE tables of all devices for that many positions.
    pub(super) fn fill_rope(&mut self, positions: usize) -> Result<(), Error> {
        for (device, on) in self.on.iter_mut().enumerate() {
            let device = self.graphs.on(device);
            on.activations.fill_rope(&**device, positions)?;
        }
        Ok(())
    }
    /// Waits for the oldest step in flight.
    ///
    /// # Errors
    /// When none is in flight, or the device fails.
    pub fn wait(&mut self) -> Result<StepOutput, Error> {
        let Some(RunningStep { key, rows }) = self.in_flight.pop_front() else {
            return Err(Error::NotInFlight);
        };
        self.graphs.prepared(&CaptureKey::Step(key)).replay.wait()?;
        if rows == 0 {
            return Ok(StepOutput::default());
        }
        let mut ids = vec![0i32; rows];
        self.device().read(
            &self.main().inputs[key.set].chosen,
            0,
            bytemuck::cast_slice_mut(&mut ids),
        )?;
        Ok(StepOutput {
            chosen: ids.into_iter().map(|id| u32::try_from(id).ok()).collect(),
        })
    }
    /// Returns whether a step is in flight.
    pub fn is_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }
    /// Waits for all steps in flight and discards their tokens.
    ///
    /// # Errors
    /// The first failure of a step. Nothing is in flight afterwards, even then.
    pub fn finish(&mut self) -> Result<(), Error> {
        let mut ended = Ok(());
        while self.is_in_flight() {
            ended = ended.and(self.wait().map(|_| ()));
        }
        ended
    }
    /// Waits for all steps in flight. Returns the output of the last one.
    fn wait_for_last(&mut self) -> Result<StepOutput, Error> {
        while self.in_flight.len() > 1 {
            self.wait()?;
        }
        self.wait()
    }
    /// Runs all but the last part of a chunk that exceeds the step limit, without logits. The last
    /// ones may still be in flight where layers on several devices work on different parts.
    fn split<'a>(&mut self, step: &Step<'a>) -> Result<Step<'a>, Error> {
        let Some(mut chunk) = step.chunk else {
            return Ok(*step);
        };
        self.check(step)?;
        self.fill_rope(last_position(step) + 1)?;
        let most_in_flight = if self.is_pipelined() { IN_FLIGHT } else { 1 };
        let piece = self.piece(&chunk);
        loop {
            let most = self.most_tokens(&chunk, step.rows.is_empty()).min(piece);
            if chunk.tokens.len() <= most {
                self.chunk_tokens = chunk.tokens.len();
                return Ok(Step {
                    chunk: Some(chunk),
                    ..*step
                });
            }
            if chunk.logits == Logits::All {
                return Err(Error::Sequences {
                    rows: chunk.tokens.len(),
                    most,
                });
            }
            let (now, rest) = chunk.tokens.split_at(most);
            let part = Step {
                chunk: Some(Chunk {
                    tokens: now,
                    logits: Logits::None,
                    ..chunk
                }),
                rows: &[],
                ..*step
            };
            self.start_alone(&part)?;
            self.fill_draft_cache(&part)?;
            while self.in_flight.len() >= most_in_flight {
                self.wait()?;
            }
            chunk = Chunk {
                tokens: rest,
                position: chunk.position + most,
                ..chunk
            };
        }
    }
    /// Returns the most tokens of a part of a prompt where several devices work on different parts.
    /// More parts keep each device waiting for less, and cost more each (docs/experiments/148).
    fn piece(&self, chunk: &Chunk) -> usize {
        let is_cut = !chunk.exact && chunk.logits != Logits::All;
        match is_cut && self.is_pipelined() {
            true => chunk.tokens.len().div_ceil(PIECES).max(LEAST_PIECE),
            false => usize::MAX,
        }
    }
    /// Returns the tokens of a chunk that a step may have, which runs decode rows too unless it is
    /// `alone`.
    fn most_tokens(&self, chunk: &Chunk, alone: bool) -> usize {
        let (exact, target) = (chunk.exact || !alone, self.device().target());
        let most = self.limit.tokens(chunk.position, exact, target);
        match chunk.logits {
            Logits::All => most.min(self.limit.limits.chunk),
            _ => most,
        }
    }
    /// Returns the number of rows that the decode graph of `rows` sequences is compiled for.
    fn batch_bucket(&self, rows: usize, invariant: bool) -> usize {
        let most = self.settings.rows();
        match rows {
            1 if !invariant => 1,
            _ => batch_graph(if invariant { most } else { rows }, most, self.rows()).tokens,
        }
    }
    /// Chooses the graph of a checked step.
    fn prepared<'a>(&self, step: &Step<'a>) -> CheckedStep<'a> {
        let (graph, variables) = match (&step.chunk, step.rows) {
            (None, [row]) if self.batch_bucket(1, step.batch_invariant) == 1 => {
                self.one_graph(step, row)
            }
            (None, rows) => {
                let most = self.settings.rows();
                let bucket = if step.batch_invariant {
                    most
                } else {
                    rows.len()
                };
                let length = rows.iter().map(|row| row.position + 1).max().unwrap_or(1);
                let variables = vec![("n", rows.len() as i64), ("length", length as i64)];
                (batch_graph(bucket, most, self.rows()), variables)
            }
            (Some(chunk), []) if !(chunk.exact && self.supports_mixed_batches()) => {
                self.chunk_graph(step, chunk)
            }
            (Some(chunk), rows) => self.mixed_graph(chunk, rows),
        };
        // In a mixed step the host samples, from the most probable token or from candidates.
        let drawn = step.rows.iter().map(|row| {
            if step.chunk.is_some() {
                CandidateSet::Top1
            } else {
                row.sampling.candidate_set()
            }
        });
        let among = match step.drafted {
            Some(_) => Some(CandidateSet::Top1),
            None => drawn.reduce(CandidateSet::and),
        };
        let set = self
            .in_flight
            .back()
            .map_or(0, |last| (last.key.set + 1) % IN_FLIGHT);
        let tokens = match step.rows {
            _ if self.in_flight.is_empty() || step.chunk.is_some() => Tokens::Given,
            [
                DecodeRow {
                    token: TokenSource::Row(0),
                    ..
                },
            ] if graph.tokens == 1 && !graph.batch => Tokens::Chosen,
            _ => Tokens::Gathered,
        };
        let last = step.chunk.map(|chunk| chunk.pages);
        let of_sequence = last
            .or(step.rows.first().map(|row| row.pages))
            .filter(|_| graph.contiguous);
        let state_row = of_sequence
            .filter(|_| self.cache.state_rows() > 0)
            .map_or(0, |pages| pages.state);
        let tables = last
            .into_iter()
            .chain(step.rows.iter().map(|row| row.pages))
            .collect();
        CheckedStep {
            key: StepKey {
                graph,
                set,
                tokens,
                state_row,
                among,
            },
            variables,
            tables,
        }
    }
    fn one_graph(&self, step: &Step, row: &DecodeRow) -> (GraphKey, Variables) {
        let at = row.position;
        let variables = vec![("pos", at as i64), ("n", 1)];
        let allowed = step.contiguous && !step.batch_invariant;
        self.with_view(
            allowed,
            row.pages,
            at..at + 1,
            self.decode_graph(at),
            variables,
        )
    }
    fn chunk_graph(&self, step: &Step, chunk: &Chunk) -> (GraphKey, Variables) {
        let n = chunk.tokens.len();
        let tokens = match step.drafted {
            Some(_) => n.max(2).next_power_of_two(),
            None if chunk.exact => self.limit.limits.chunk,
            None => self.limit.bucket(n),
        };
        let logits = match chunk.logits {
            _ if step.drafted.is_some() => Logits::Drafted,
            Logits::None => Logits::None,
            // The last token of one is all of them.
            _ if n == 1 => Logits::Last,
            logits => logits,
        };
        let graph = match tokens {
            1 => GraphKey {
                logits,
                ..self.decode_graph(chunk.position)
            },
            _ => GraphKey {
                tokens,
                batch: false,
                others: 0,
                logits,
                depth: self.rows(),
                contiguous: true,
                draft: None,
            },
        };
        let mut variables = vec![("pos", chunk.position as i64), ("n", n as i64)];
        let kept = step.drafted.map(|drafted| (n - drafted) as i64);
        variables.extend(kept.map(|kept| ("kept", kept)));
        let positions = chunk.position..chunk.position + n;
        self.with_view(
            step.contiguous && !chunk.exact,
            chunk.pages,
            positions,
            graph,
            variables,
        )
    }
    /// Adds the contiguous view of the pages to a one-sequence graph, if it is allowed and exists.
    fn with_view(
        &self,
        allowed: bool,
        pages: Pages,
        positions: std::ops::Range<usize>,
        graph: GraphKey,
        mut variables: Variables,
    ) -> (GraphKey, Variables) {
        let (pools, blocks) = (self.cache.shape().pools, self.rows() / Options::PAGE);
        let view = pages
            .contiguous(pools, blocks, self.cache.window(), positions)
            .filter(|_| allowed);
        if let Some(view) = view {
            variables.push(("first_page", i64::from(view.first_page)));
            variables.push(("window_shift", view.window_shift as i64));
        }
        (
            GraphKey {
                contiguous: view.is_some(),
                ..graph
            },
            variables,
        )
    }
    fn mixed_graph(&self, chunk: &Chunk, rows: &[DecodeRow]) -> (GraphKey, Variables) {
        let n = chunk.tokens.len();
        let tokens = if chunk.exact {
            self.limit.limits.chunk
        } else {
            self.limit.bucket(n.max(2))
        };
        let logits = if rows.is_empty() {
            chunk.logits
        } else {
            Logits::LastOfEach
        };
        let others = self.settings.decode_rows().unwrap_or(0);
        let graph = GraphKey {
            tokens,
            batch: false,
            others,
            logits,
            depth: self.rows(),
            contiguous: false,
            draft: None,
        };
        // The logits of the chunk's last row are not read, so `length` need not cover its context.
        let length = rows.iter().map(|row| row.position + 1).max().unwrap_or(1);
        let [first, n, rows, length] =
            [chunk.position, n, rows.len() + 1, length].map(|n| n as i64);
        (
            graph,
            vec![
                ("pos", first),
                ("piece", n),
                ("rows", rows),
                ("n", rows),
                ("length", length),
            ],
        )
    }
    /// Returns the decode graph of one sequence with the smallest depth that covers `position`.
    pub(super) fn decode_graph(&self, position: usize) -> GraphKey {
        let depth = self
            .depths
            .iter()
            .copied()
            .find(|&d| position < d)
            .unwrap_or(self.rows());
        GraphKey {
            tokens: 1,
            batch: false,
            others: 0,
            logits: Logits::Last,
            depth,
            contiguous: true,
            draft: None,
        }
    }
    /// Writes the inputs of a step on every device. Chosen tokens and sampling are on the main
    /// device alone.
    fn write_inputs(&mut self, step: &Step, key: &StepKey, tables: &[Pages]) -> Result<(), Error> {
        for (number, on) in self.on.iter_mut().enumerate() {
            let device = &**self.graphs.on(number);
            write_rows(on, device, step, key, tables)?;
            if number > 0 {
                continue;
            }
            let inputs = &on.inputs[key.set];
            if key.tokens == Tokens::Gathered {
                inputs.write_sources(device, step.rows)?;
            }
            if !matches!(key.among, None | Some(CandidateSet::Top1)) {
                inputs.write_sampling(device, step.rows)?;
            }
        }
        Ok(())
    }
    /// Checks a step's tokens, positions, pages and number of rows.
    fn check(&self, step: &Step) -> Result<(), Error> {
        if self.model.is_encoder() {
            return Err(Error::Encoder);
        }
        let most = match step.chunk {
            None => self.settings.rows(),
            Some(_) => self.settings.decode_rows().unwrap_or(0),
        };
        if step.rows.len() > most {
            let extra = usize::from(step.chunk.is_some());
            return Err(Error::Sequences {
                rows: step.rows.len() + extra,
                most: most + extra,
            });
        }
        let rows = step.rows.iter().map(|row| (row.position, 1, row.pages));
        let chunk = step
            .chunk
            .iter()
            .map(|chunk| (chunk.position, chunk.tokens.len(), chunk.pages));
        for (position, n, pages) in chunk.chain(rows) {
            self.cache.check(pages)?;
            let end = position
                .checked_add(n)
                .filter(|&end| end <= self.context)
                .ok_or(Error::Full(self.context))?;
            if pages.all.len() * Options::PAGE < end {
                return Err(Error::Pages);
            }
        }
        let given = step.rows.iter().filter_map(|row| row.token.token());
        let tokens = step
            .chunk
            .iter()
            .flat_map(|chunk| chunk.tokens.iter().copied())
            .chain(given);
        if step.rows.is_empty() && step.chunk.is_none_or(|chunk| chunk.tokens.is_empty()) {
            return Err(Error::Empty);
        }
        self.check_drafted(step)?;
        tokens
            .into_iter()
            .try_for_each(|token| self.check_token(token))
    }
    /// Checks that a chunk with drafts has another token, and no more rows of logits than a step.
    fn check_drafted(&self, step: &Step) -> Result<(), Error> {
        let (Some(drafted), Some(chunk)) = (step.drafted, &step.chunk) else {
            return Ok(());
        };
        let (rows, most) = (chunk.tokens.len(), self.settings.rows());
        if rows > most {
            return Err(Error::Sequences { rows, most });
        }
        match drafted < rows && step.rows.is_empty() {
            true => Ok(()),
            false => Err(Error::Empty),
        }
    }
    fn check_token(&self, token: u32) -> Result<(), Error> {
        let vocabulary = self.model.vocabulary();
        if (token as usize) < vocabulary {
            Ok(())
        } else {
            Err(Error::Token { token, vocabulary })
        }
    }
    /// Checks that `tokens` is not empty and that every id is in the vocabulary.
    ///
    /// # Errors
    /// When there are none, or one is out of range.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        if tokens.is_empty() {
            return Err(Error::Empty);
        }
        tokens.iter().try_for_each(|&token| self.check_token(token))
    }
    /// The device that the engine runs on; the main device of several.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.graphs.device()
    }
    /// Returns what the engine has on the main device.
    pub(super) fn main(&self) -> &DeviceBuffers {
        &self.on[0]
    }
    /// Returns whether a step runs while the host reads the one before: see [`Device::overlaps`].
    /// A step on several devices has ended when it has been started, unless they queue its copies.
    pub fn overlaps(&self) -> bool {
        self.device().overlaps() && (self.on.len() == 1 || self.is_pipelined())
    }
    /// Returns whether layers are on several devices that queue the copies between them, so that
    /// they work on different parts of a prompt at a time.
    pub(super) fn is_pipelined(&self) -> bool {
        self.on.len() > 1 && self.placement.is_pipelined(&**self.device())
    }
    /// Returns the positions per sequence that kernels are compiled for; more than the context.
    pub(super) fn rows(&self) -> usize {
        self.cache.shape().rows
    }
    /// Returns whether prefill chunks and decode rows can share a step (mixed batch).
    pub fn supports_mixed_batches(&self) -> bool {
        self.settings.decode_rows().is_some()
    }
}

/// Returns the last position that a step reads.
fn last_position(step: &Step) -> usize {
    let rows = step.rows.iter().map(|row| row.position);
    let chunk = step
        .chunk
        .iter()
        .map(|chunk| (chunk.position + chunk.tokens.len()).saturating_sub(1));
    rows.chain(chunk).max().unwrap_or(0)
}

/// Writes the inputs of a step that do not depend on sampling, on one device.
fn write_rows(
    on: &mut DeviceBuffers,
    device: &dyn Device,
    step: &Step,
    key: &StepKey,
    tables: &[Pages],
) -> Result<(), Error> {
    let inputs = &mut on.inputs[key.set];
    if !key.graph.contiguous {
        inputs.write_tables(device, tables)?;
    }
    let chunk = step.chunk.iter().flat_map(|chunk| {
        chunk
            .tokens
            .iter()
            .zip(chunk.position..)
            .map(|(&token, at)| (token, at, chunk.pages))
    });
    let rows = step
        .rows
        .iter()
        .map(|row| (row.token.token().unwrap_or(0), row.position, row.pages));
    let all = chunk.chain(rows);
    if key.graph.batch || key.graph.others > 0 {
        inputs.write_positions(device, all.clone().map(|token| token.1))?;
    }
    if key.graph.others > 0 {
        inputs.write_slots(device, all.clone().map(|(_, at, pages)| (at, pages)))?;
    }
    let of_chunk = step.chunk.iter();
    let scales = of_chunk
        .flat_map(|chunk| chunk.tokens.iter().map(|_| chunk.pages.adapters))
        .chain(step.rows.iter().map(|row| row.pages.adapters));
    inputs.write_scales(device, scales)?;
    if key.tokens == Tokens::Given {
        inputs.write_tokens(device, all.map(|token| token.0))?;
    }
    Ok(())
}
