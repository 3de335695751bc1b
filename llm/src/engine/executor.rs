//! A model on a device, and the one way to run a step of it: check, choose a graph, write its inputs, start it, wait.

use super::activations::Activations;
use super::graph_key::{GraphKey, Settings, batch_graph, plan_options};
use super::graphs::{CaptureKey, Graphs, StepKey, Tokens, Variables};
use super::inputs::StepInputs;
use super::kv_cache::KvCache;
use super::pages::Pages;
use super::step::{Chunk, DecodeRow, Step, StepOutput, TokenSource};
use super::step_limit::StepLimit;
use crate::arch::{self, Bind, Logits, Model, Options, Plan};
use crate::error::{Error, Progress};
use crate::load::{Weights, check_layouts};
use crate::sampling::{self, CandidateSet, Candidates, DeviceSampler, RowParams};
use gristmill_runtime::{Buffer, Device};
use gristmill_tensor::jit::Call;
use std::collections::VecDeque;
use std::sync::Arc;

/// Steps that may be in flight at once.
pub(super) const IN_FLIGHT: usize = 2;

/// A step that was started and not waited for.
pub(super) struct RunningStep {
    key: StepKey,
    /// Rows of logits that a token is chosen for.
    rows: usize,
}

/// A model, ready to run.
pub struct Engine {
    pub(super) model: Box<dyn Model>,
    pub(super) settings: Settings,
    pub(super) context: usize,
    pub(super) weights: Weights,
    pub(super) cache: KvCache,
    pub(super) graphs: Graphs,
    pub(super) activations: Activations,
    pub(super) inputs: [StepInputs; IN_FLIGHT],
    pub(super) in_flight: VecDeque<RunningStep>,
    pub(super) candidates: Option<DeviceSampler>,
    /// Which row of recurrent states is copied to which, `[2]` i32.
    pub(super) state_copy: Option<Buffer>,
    pub(super) limit: StepLimit,
    /// Context depths of decode steps of one sequence, ascending; the last is all positions.
    pub(super) depths: Vec<usize>,
}

/// A step that was checked: its graph, variables, and block tables.
struct CheckedStep<'a> {
    key: StepKey,
    variables: Variables,
    tables: Vec<Pages<'a>>,
}

impl Engine {
    /// Runs a step.
    ///
    /// # Errors
    /// When a token, a position or a page is out of range, there are too many rows, or the device fails. Cached rows that the step has
    /// written are not to be used then.
    pub fn run(&mut self, step: &Step) -> Result<StepOutput, Error> {
        self.finish()?;
        let step = self.split(step)?;
        self.start_alone(&step)?;
        self.wait()
    }
    /// Runs a step, and computes the sampling candidates of its rows that `ask` returns while it runs.
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
            return Ok((self.wait()?, Vec::new()));
        }
        // Behind a chunk its own last token and every decode row have logits.
        let most = match (&step.chunk, step.rows.len()) {
            (Some(_), _) => self.settings.parallel,
            (None, n) => self.batch_bucket(n, step.batch_invariant),
        };
        self.prepare_candidates(most)?;
        self.start_alone(&step)?;
        let asks = ask();
        let asked = self.start_candidates(most, &asks);
        // The step is waited for whatever became of the candidates.
        let ended = self.wait();
        let ranked = asked.and_then(|()| self.wait_for_candidates(most, &asks));
        Ok((ended?, ranked?))
    }
    /// Starts a step. False where it must wait for the steps in flight: for an input of theirs, or to
    /// be compiled. Nothing is started then.
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
        let CheckedStep { key, variables, tables } = self.prepared(step);
        let waits = step.chunk.is_some() || self.in_flight.len() >= IN_FLIGHT;
        let ready = self.activations.has_rope(last_position(step) + 1) && self.graphs.has(&CaptureKey::Step(key));
        if waits || !ready {
            return Ok(false);
        }
        let device = self.device().clone();
        self.write_inputs(&*device, step, &key, &tables)?;
        self.replay(step, key, &variables)?;
        Ok(true)
    }
    /// Starts a step while none is in flight.
    fn start_alone(&mut self, step: &Step) -> Result<(), Error> {
        let (key, variables) = self.ready_alone(step)?;
        self.replay(step, key, &variables)
    }
    fn replay(&mut self, step: &Step, key: StepKey, variables: &Variables) -> Result<(), Error> {
        self.graphs.prepared(&CaptureKey::Step(key)).replay.start(variables)?;
        let chunk = usize::from(step.chunk.is_some());
        let rows = key.among.map_or(0, |_| step.rows.len() + chunk);
        self.in_flight.push_back(RunningStep { key, rows });
        Ok(())
    }
    /// Captures the steps that read the tokens which such a step chooses, of either set of inputs.
    fn prepare_followers(&mut self, key: &StepKey) -> Result<(), Error> {
        if key.among.is_none() || key.graph.others > 0 || !self.device().overlaps() {
            return Ok(());
        }
        let tokens = if key.graph.batch { Tokens::Gathered } else { Tokens::Chosen };
        (0..IN_FLIGHT).try_for_each(|set| self.prepare(&StepKey { set, tokens, ..*key }, &|_| ()))
    }
    /// Makes a step ready to be replayed while nothing else runs.
    pub(super) fn ready_alone(&mut self, step: &Step) -> Result<(StepKey, Variables), Error> {
        self.check(step)?;
        let CheckedStep { key, variables, tables } = self.prepared(step);
        let device = self.device().clone();
        self.activations.fill_rope(&*device, last_position(step) + 1)?;
        self.prepare(&key, &|_| ())?;
        self.write_inputs(&*device, step, &key, &tables)?;
        Ok((key, variables))
    }
    /// Waits for the earliest step in flight.
    ///
    /// # Errors
    /// When none is in flight, or the device fails.
    pub fn wait(&mut self) -> Result<StepOutput, Error> {
        let Some(RunningStep { key, rows }) = self.in_flight.pop_front() else { return Err(Error::NotInFlight) };
        self.graphs.prepared(&CaptureKey::Step(key)).replay.wait()?;
        if rows == 0 {
            return Ok(StepOutput::default());
        }
        let mut ids = vec![0i32; rows];
        self.device().read(&self.inputs[key.set].chosen, 0, bytemuck::cast_slice_mut(&mut ids))?;
        Ok(StepOutput { chosen: ids.into_iter().map(|id| u32::try_from(id).ok()).collect() })
    }
    /// Is a step in flight?
    pub fn is_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }
    /// Waits for all steps in flight; the tokens that they chose are lost.
    ///
    /// # Errors
    /// The first failure of a step. Nothing runs any more, all the same.
    pub fn finish(&mut self) -> Result<(), Error> {
        let mut ended = Ok(());
        while self.is_in_flight() {
            ended = ended.and(self.wait().map(|_| ()));
        }
        ended
    }
    /// Runs chunks before the last of a chunk that is longer than a step may be, without logits.
    fn split<'a>(&mut self, step: &Step<'a>) -> Result<Step<'a>, Error> {
        let Some(mut chunk) = step.chunk else { return Ok(*step) };
        self.check(step)?;
        let alone = step.rows.is_empty();
        loop {
            let target = self.device().target();
            let most = self.limit.tokens(chunk.position, chunk.exact || !alone, target);
            let most = if chunk.logits == Logits::All { most.min(self.limit.limits.chunk) } else { most };
            if chunk.tokens.len() <= most {
                return Ok(Step { chunk: Some(chunk), ..*step });
            }
            if chunk.logits == Logits::All {
                return Err(Error::Sequences { rows: chunk.tokens.len(), most });
            }
            let (now, rest) = chunk.tokens.split_at(most);
            self.start_alone(&Step {
                chunk: Some(Chunk { tokens: now, logits: Logits::None, ..chunk }),
                rows: &[],
                ..*step
            })?;
            self.wait()?;
            chunk = Chunk { tokens: rest, position: chunk.position + most, ..chunk };
        }
    }
    /// The rows that the kernels of a batched decode step take.
    fn batch_bucket(&self, rows: usize, invariant: bool) -> usize {
        let most = self.settings.parallel;
        match rows {
            1 if !invariant => 1,
            _ => batch_graph(if invariant { most } else { rows }, most, self.rows()).tokens,
        }
    }
    /// Chooses the graph of a step that was checked.
    fn prepared<'a>(&self, step: &Step<'a>) -> CheckedStep<'a> {
        let (graph, variables) = match (&step.chunk, step.rows) {
            (None, [row]) if self.batch_bucket(1, step.batch_invariant) == 1 => self.one_graph(step, row),
            (None, rows) => {
                let most = self.settings.parallel;
                let bucket = if step.batch_invariant { most } else { rows.len() };
                let length = rows.iter().map(|row| row.position + 1).max().unwrap_or(1);
                let variables = vec![("n", rows.len() as i64), ("length", length as i64)];
                (batch_graph(bucket, most, self.rows()), variables)
            }
            (Some(chunk), []) if !(chunk.exact && self.mixes()) => self.chunk_graph(step, chunk),
            (Some(chunk), rows) => self.mixed_graph(chunk, rows),
        };
        // The host chooses where a chunk is in the step, from the most probable token or from candidates.
        let drawn = step
            .rows
            .iter()
            .map(|row| if step.chunk.is_some() { CandidateSet::Top1 } else { row.sampling.candidate_set() });
        let among = drawn.reduce(CandidateSet::and);
        let set = self.in_flight.back().map_or(0, |last| (last.key.set + 1) % IN_FLIGHT);
        let tokens = match step.rows {
            _ if self.in_flight.is_empty() => Tokens::Given,
            [DecodeRow { token: TokenSource::Row(0), .. }] if graph.tokens == 1 && !graph.batch => Tokens::Chosen,
            _ => Tokens::Gathered,
        };
        let last = step.chunk.map(|chunk| chunk.pages);
        let of_sequence = last.or(step.rows.first().map(|row| row.pages)).filter(|_| graph.contiguous);
        let state_row = of_sequence.filter(|_| self.cache.state_rows() > 0).map_or(0, |pages| pages.state);
        let tables = last.into_iter().chain(step.rows.iter().map(|row| row.pages)).collect();
        CheckedStep { key: StepKey { graph, set, tokens, state_row, among }, variables, tables }
    }
    fn one_graph(&self, step: &Step, row: &DecodeRow) -> (GraphKey, Variables) {
        let at = row.position;
        let variables = vec![("pos", at as i64), ("n", 1)];
        let allowed = step.contiguous && !step.batch_invariant;
        self.with_view(allowed, row.pages, at..at + 1, self.decode_graph(at), variables)
    }
    fn chunk_graph(&self, step: &Step, chunk: &Chunk) -> (GraphKey, Variables) {
        let n = chunk.tokens.len();
        let tokens = if chunk.exact { self.limit.limits.chunk } else { self.limit.bucket(n) };
        // One token's logits are all of its logits.
        let logits = if n > 1 || chunk.logits == Logits::None { chunk.logits } else { Logits::Last };
        let graph = match tokens {
            1 => GraphKey { logits, ..self.decode_graph(chunk.position) },
            _ => GraphKey { tokens, batch: false, others: 0, logits, depth: self.rows(), contiguous: true },
        };
        let variables = vec![("pos", chunk.position as i64), ("n", n as i64)];
        let positions = chunk.position..chunk.position + n;
        self.with_view(step.contiguous && !chunk.exact, chunk.pages, positions, graph, variables)
    }
    /// A graph of one sequence with the contiguous view of its pages, if it may have and has one.
    fn with_view(
        &self,
        allowed: bool,
        pages: Pages,
        positions: std::ops::Range<usize>,
        graph: GraphKey,
        mut variables: Variables,
    ) -> (GraphKey, Variables) {
        let (pools, blocks) = (self.cache.shape().pools, self.rows() / Options::PAGE);
        let view = pages.contiguous(pools, blocks, self.cache.window(), positions).filter(|_| allowed);
        if let Some(view) = view {
            variables.push(("first_page", i64::from(view.first_page)));
            variables.push(("window_shift", view.window_shift as i64));
        }
        (GraphKey { contiguous: view.is_some(), ..graph }, variables)
    }
    fn mixed_graph(&self, chunk: &Chunk, rows: &[DecodeRow]) -> (GraphKey, Variables) {
        let n = chunk.tokens.len();
        let tokens = if chunk.exact { self.limit.limits.chunk } else { self.limit.bucket(n.max(2)) };
        let logits = if rows.is_empty() { chunk.logits } else { Logits::LastOfEach };
        let others = self.settings.decode_rows().unwrap_or(0);
        let graph = GraphKey { tokens, batch: false, others, logits, depth: self.rows(), contiguous: false };
        // No logits of the chunk's last row are read: it need not see what is before it.
        let length = rows.iter().map(|row| row.position + 1).max().unwrap_or(1);
        let [first, n, rows, length] = [chunk.position, n, rows.len() + 1, length].map(|n| n as i64);
        (graph, vec![("pos", first), ("piece", n), ("rows", rows), ("n", rows), ("length", length)])
    }
    /// The graph of a decode step of one sequence: of the least depth that reaches the position.
    pub(super) fn decode_graph(&self, position: usize) -> GraphKey {
        let depth = self.depths.iter().copied().find(|&d| position < d).unwrap_or(self.rows());
        GraphKey { tokens: 1, batch: false, others: 0, logits: Logits::Last, depth, contiguous: true }
    }
    fn write_inputs(&mut self, device: &dyn Device, step: &Step, key: &StepKey, tables: &[Pages]) -> Result<(), Error> {
        let inputs = &mut self.inputs[key.set];
        if !key.graph.contiguous {
            inputs.write_tables(device, tables)?;
        }
        let chunk = step
            .chunk
            .iter()
            .flat_map(|chunk| chunk.tokens.iter().zip(chunk.position..).map(|(&token, at)| (token, at, chunk.pages)));
        let rows = step.rows.iter().map(|row| (row.token.token().unwrap_or(0), row.position, row.pages));
        let all = chunk.chain(rows);
        if key.graph.batch || key.graph.others > 0 {
            inputs.write_positions(device, all.clone().map(|token| token.1))?;
        }
        if key.graph.others > 0 {
            inputs.write_slots(device, all.clone().map(|(_, at, pages)| (at, pages)))?;
        }
        match key.tokens {
            Tokens::Given => self.activations.write_tokens(device, all.map(|token| token.0))?,
            Tokens::Chosen => {}
            Tokens::Gathered => self.inputs[key.set].write_sources(device, step.rows)?,
        }
        match key.among {
            None | Some(CandidateSet::Top1) => Ok(()),
            Some(_) => self.inputs[key.set].write_sampling(device, step.rows),
        }
    }
    /// Compiles and captures a step unless it is.
    pub(super) fn prepare(&mut self, key: &StepKey, progress: &dyn Fn(Progress)) -> Result<(), Error> {
        let capture = CaptureKey::Step(*key);
        if self.graphs.has(&capture) {
            return Ok(());
        }
        let (vocabulary, parallel) = (self.model.vocabulary(), self.settings.parallel);
        let plan = self.plan(key.graph);
        let next = (key.tokens == Tokens::Gathered).then(|| sampling::next_function(parallel));
        let most = match key.graph {
            GraphKey { others: 0, tokens, .. } => tokens,
            GraphKey { others, .. } => others + 1,
        };
        let choice = key.among.map(|among| among.function(vocabulary, most));
        let [next, choice] = [next, choice].map(|f| f.map(|f| self.graphs.functions.share(f)));
        let functions: Vec<_> =
            next.iter().chain(plan.calls.iter().map(|call| &call.function)).chain(&choice).cloned().collect();
        let mut ready = self.graphs.ready(&functions, progress)?.into_iter();
        let (inputs, before) = (&self.inputs[key.set], &self.inputs[(key.set + IN_FLIGHT - 1) % IN_FLIGHT]);
        let mut calls = Vec::new();
        if next.is_some()
            && let Some(function) = ready.next()
        {
            let args = [&before.chosen, &inputs.from, &inputs.given, &self.activations.tokens];
            calls.push(Call { function, args: args.map(Buffer::clone).to_vec() });
        }
        for call in &plan.calls {
            let Some(function) = ready.next() else { unreachable!("as many are ready as were asked for") };
            check_layouts(&self.weights, call, &function)?;
            calls.push(Call { function, args: self.args(call, key) });
        }
        if let Some(function) = ready.next() {
            let (numbers, random) = (inputs.numbers.clone(), inputs.random.clone());
            let drawn = if key.among == Some(CandidateSet::Top1) { vec![] } else { vec![numbers, random] };
            let args = std::iter::once(self.activations.logits.clone()).chain(drawn);
            calls.push(Call { function, args: args.chain([inputs.chosen.clone()]).collect() });
        }
        self.graphs.capture(capture, &calls)
    }
    /// The buffers that a call of a step is bound to.
    fn args(&self, call: &arch::BoundCall, key: &StepKey) -> Vec<Buffer> {
        let before = &self.inputs[(key.set + IN_FLIGHT - 1) % IN_FLIGHT];
        let bound = |bind: &Bind| match bind {
            Bind::Tokens if key.tokens == Tokens::Chosen => before.chosen.clone(),
            Bind::State(layer, plane) if key.graph.contiguous => {
                self.cache.sequence_buffer(*layer, *plane, key.state_row)
            }
            Bind::State(layer, plane) => self.cache.buffer(*layer, *plane).clone(),
            Bind::Weight(name) => self.weights.get(name).expect("loaded for all plans").clone(),
            bind => self.activations.bound(bind).unwrap_or_else(|| self.inputs[key.set].bound(bind)),
        };
        call.binds.iter().map(bound).collect()
    }
    /// The plan of a graph.
    pub(super) fn plan(&mut self, graph: GraphKey) -> Plan {
        let options = plan_options(graph, self.cache.shape(), self.graphs.jit.target());
        self.model.plan(&options, &mut self.graphs.functions)
    }
    /// Checks a step's tokens, positions, pages and number of rows.
    fn check(&self, step: &Step) -> Result<(), Error> {
        let most = match step.chunk {
            None => self.settings.parallel,
            Some(_) => self.settings.decode_rows().unwrap_or(0),
        };
        if step.rows.len() > most {
            let extra = usize::from(step.chunk.is_some());
            return Err(Error::Sequences { rows: step.rows.len() + extra, most: most + extra });
        }
        let rows = step.rows.iter().map(|row| (row.position, 1, row.pages));
        let chunk = step.chunk.iter().map(|chunk| (chunk.position, chunk.tokens.len(), chunk.pages));
        for (position, n, pages) in chunk.chain(rows) {
            self.cache.check(pages)?;
            let end = position.checked_add(n).filter(|&end| end <= self.context).ok_or(Error::Full(self.context))?;
            if pages.all.len() * Options::PAGE < end {
                return Err(Error::Pages);
            }
        }
        let given = step.rows.iter().filter_map(|row| row.token.token());
        let tokens = step.chunk.iter().flat_map(|chunk| chunk.tokens.iter().copied()).chain(given);
        if step.rows.is_empty() && step.chunk.is_none_or(|chunk| chunk.tokens.is_empty()) {
            return Err(Error::Empty);
        }
        tokens.into_iter().try_for_each(|token| self.check_token(token))
    }
    fn check_token(&self, token: u32) -> Result<(), Error> {
        let vocabulary = self.model.vocabulary();
        if (token as usize) < vocabulary { Ok(()) } else { Err(Error::Token { token, vocabulary }) }
    }
    /// Checks that there are tokens, all of them in the vocabulary.
    ///
    /// # Errors
    /// When there are none, or one is out of range.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        if tokens.is_empty() {
            return Err(Error::Empty);
        }
        tokens.iter().try_for_each(|&token| self.check_token(token))
    }
    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.graphs.device()
    }
    /// Positions of a sequence that kernels know, more than the context.
    pub(super) fn rows(&self) -> usize {
        self.cache.shape().rows
    }
    /// Runs prefill chunks and decode rows in one step?
    pub fn mixes(&self) -> bool {
        self.settings.decode_rows().is_some()
    }
}

/// The last position that a step reads.
fn last_position(step: &Step) -> usize {
    let rows = step.rows.iter().map(|row| row.position);
    let chunk = step.chunk.iter().map(|chunk| (chunk.position + chunk.tokens.len()).saturating_sub(1));
    rows.chain(chunk).max().unwrap_or(0)
}
