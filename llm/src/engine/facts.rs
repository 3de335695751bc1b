//! What an engine is, and what its steps cost.

use super::executor::Engine;
use super::graph_key::{GraphKey, batch_graph};
use super::graphs::{CaptureKey, Captured, StepKey, Tokens};
use super::inputs::StepInputs;
use super::kv_cache::KvCache;
use super::pages::{PageCopy, StateCopy};
use super::step::{Chunk, DecodeRow, Step, TokenSource};
use crate::arch::{Logits, Model, Plan};
use crate::error::{Error, Progress};
use crate::load::Weights;
use crate::sampling::{CandidateSet, RowSampling, SamplingMethod};
use crate::traffic::{self, Traffic};
use gristmill_runtime::{Buffer, Span};
use gristmill_tensor::jit::Ready;
use gristmill_uop::machine::MachineKind;
use std::sync::Arc;

impl Engine {
    /// The model.
    pub fn model(&self) -> &dyn Model {
        self.model.as_ref()
    }
    /// Tokens of context.
    pub fn context(&self) -> usize {
        self.context
    }
    /// Most sequences of a step.
    pub fn max_sequences(&self) -> usize {
        self.settings.parallel
    }
    /// Most tokens of one step, except those of long prompts.
    pub fn chunk(&self) -> usize {
        self.limit.limits.chunk
    }
    /// Most tokens of a step of a long prompt.
    pub fn longest_step(&self) -> usize {
        self.limit.limits.long
    }
    /// The KV cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }
    /// The weights, for another engine of the same file on the same device; see
    /// [`Compiled::load`](super::Compiled::load).
    pub fn weights(&self) -> &Weights {
        &self.weights
    }
    /// Bytes of all device memory: weights, cache, activations. Rows of the cache that were never
    /// used may take no memory yet.
    pub fn memory_bytes(&self) -> u64 {
        let candidates = self.candidates.iter().flat_map(|rows| rows.buffers());
        let buffers = self.cache.buffers().chain(self.activations.buffers());
        let buffers = buffers.chain(self.inputs.iter().flat_map(StepInputs::buffers)).chain(candidates);
        let beside = buffers.map(|buffer: &Buffer| buffer.len() as u64).sum::<u64>();
        self.weights.bytes() + beside + self.graphs.arena_bytes() as u64
    }
    /// Is the cache in host memory? Copies of pages there gain nothing then.
    pub fn cache_is_on_host(&self) -> bool {
        self.device().target().machine.kind == MachineKind::Cpu
    }
    /// Does the device choose such tokens faster than the host? It always finds the largest logit;
    /// other draws are many small kernels, which a host that runs them itself does better in one pass.
    pub fn chooses(&self, choice: SamplingMethod) -> bool {
        choice == SamplingMethod::Greedy || self.device().overlaps()
    }
    /// Reads a page of all layers into `rows`.
    ///
    /// # Errors
    /// When there is no such page, or the device fails.
    pub fn read_page(&mut self, page: u32, rows: &mut Vec<u8>) -> Result<(), Error> {
        self.finish()?;
        self.cache.read_page(page, rows)
    }
    /// Writes a page that [`Engine::read_page`] read.
    ///
    /// # Errors
    /// As for that.
    pub fn write_page(&mut self, page: u32, rows: &[u8]) -> Result<(), Error> {
        self.finish()?;
        self.cache.write_page(page, rows)
    }
    /// Copies a page.
    ///
    /// # Errors
    /// As for [`Engine::read_page`].
    pub fn copy_page(&mut self, copy: &PageCopy) -> Result<(), Error> {
        self.finish()?;
        self.cache.copy_page(copy)
    }
    /// Writes zeros into pages that may hold NaN or infinity, and into pages of the window pool.
    ///
    /// # Errors
    /// When the device fails.
    pub fn clear_pages(&mut self, pages: &[u32], windows: &[u32]) -> Result<(), Error> {
        self.finish()?;
        self.cache.clear(pages, windows)
    }
    /// Fills the first `position` rows of the cache's pools with random numbers, for a benchmark.
    ///
    /// # Errors
    /// When the device fails.
    pub fn fill_cache_for_bench(&mut self, position: usize) -> Result<(), Error> {
        self.finish()?;
        self.cache.fill_for_bench(position)
    }
    /// Copies a row of recurrent states to another, in all layers.
    ///
    /// # Errors
    /// When one is no row, or the device fails.
    pub fn copy_state(&mut self, copy: &StateCopy) -> Result<(), Error> {
        self.finish()?;
        self.copy_state_row(copy)
    }
    /// Compiles and captures what logits of every one of `tokens` tokens need; else that happens at
    /// their first step.
    ///
    /// # Errors
    /// When the device fails.
    pub fn prepare_all_logits(&mut self, tokens: usize, progress: &dyn Fn(Progress)) -> Result<(), Error> {
        let chunk = self.chunk();
        for n in [tokens.min(chunk), tokens % chunk].into_iter().filter(|&n| n > 1) {
            let graph = self.chunk_key(n, Logits::All, 0);
            self.prepare(&self.plain(graph, None), progress)?;
        }
        Ok(())
    }
    /// Compiles and captures batched decode steps of so many sequences; else that happens at the first.
    ///
    /// # Errors
    /// When the device fails.
    pub fn prepare_batch(&mut self, sequences: usize, progress: &dyn Fn(Progress)) -> Result<(), Error> {
        let graph = self.rows_key(sequences.clamp(1, self.max_sequences()), 0);
        self.prepare(&self.plain(graph, Some(CandidateSet::Top1)), progress)
    }
    /// The step of a graph whose tokens the host gives.
    pub(super) fn plain(&self, graph: GraphKey, among: Option<CandidateSet>) -> StepKey {
        StepKey { graph, set: 0, tokens: Tokens::Given, state_row: 0, among }
    }
    fn chunk_key(&self, tokens: usize, logits: Logits, position: usize) -> GraphKey {
        match self.limit.bucket(tokens) {
            1 => self.decode_graph(position),
            tokens => GraphKey { tokens, logits, depth: self.rows(), ..self.decode_graph(position) },
        }
    }
    fn rows_key(&self, sequences: usize, position: usize) -> GraphKey {
        match sequences {
            1 => self.decode_graph(position),
            n => batch_graph(n, self.max_sequences(), self.rows()),
        }
    }
    /// Most tokens of the graph that runs a prefill chunk of so many.
    pub fn step_tokens(&self, tokens: usize) -> usize {
        self.limit.bucket(tokens)
    }
    /// The plan of a prefill chunk, or of a decode step of one token.
    pub fn step_plan(&mut self, tokens: usize, position: usize) -> Plan {
        self.plan(self.chunk_key(tokens, Logits::Last, position))
    }
    /// The function and program of every launch of a step, if one was taken: of a prefill chunk with
    /// the logits of its last token, or of a decode step of one token.
    pub fn step_launches(&self, tokens: usize, position: usize) -> &[(Arc<Ready>, usize)] {
        self.launches_of(&self.chunk_key(tokens, Logits::Last, position))
    }
    /// The same of a decode step of so many sequences.
    pub fn batch_launches(&self, sequences: usize) -> &[(Arc<Ready>, usize)] {
        self.launches_of(&self.rows_key(sequences, 0))
    }
    fn launches_of(&self, graph: &GraphKey) -> &[(Arc<Ready>, usize)] {
        self.graphs.captured_step(graph).map_or(&[], |captured: &Captured| &captured.launches)
    }
    /// Bytes that a step of so many tokens at that position must read.
    pub fn traffic(&mut self, tokens: usize, position: usize) -> Traffic {
        let plan = self.plan(self.decode_graph(position));
        let bytes = |name: &str| self.weights.get(name).map_or(0, |b| b.len() as u64);
        let rows = position + tokens.saturating_sub(1) / 2 + 1;
        // States are written as well, which counts as reading.
        let cache = traffic::cache(&plan, rows) + (2 * self.model.state_bytes()) as f64;
        Traffic { weights: traffic::weights(&plan, tokens, &bytes), cache }
    }
    /// Distinct functions compiled.
    pub fn compiled(&self) -> usize {
        self.graphs.jit.compiled()
    }
    /// Runs a step, and tells when each worker was at each launch.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    pub fn run_traced(&mut self, step: &Step) -> Result<Vec<Span>, Error> {
        self.finish()?;
        let (key, variables) = self.ready_alone(step)?;
        let spans = self.graphs.prepared(&CaptureKey::Step(key)).replay.replay_traced(&variables)?;
        let mut logits = Vec::new();
        self.row_logits(0, &mut logits)?;
        Ok(spans)
    }
    /// Runs a step, and returns the seconds of every launch.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    pub fn run_timed(&mut self, step: &Step) -> Result<Vec<f64>, Error> {
        self.finish()?;
        let (key, variables) = self.ready_alone(step)?;
        Ok(self.graphs.prepared(&CaptureKey::Step(key)).replay.replay_timed(&variables)?)
    }
}

/// Pages of one sequence that has the whole pool, and steps of it.
#[derive(Clone, Debug)]
pub struct WholePool {
    all: Vec<u32>,
    windows: Vec<u32>,
    state: u32,
}

impl WholePool {
    /// The first pages of an engine, for its whole context.
    pub fn new(engine: &Engine) -> WholePool {
        let blocks = engine.rows() / crate::arch::Options::PAGE;
        let all: Vec<u32> = (0..blocks as u32).collect();
        let ring = engine.cache().window_pages();
        let windows = ring.map_or(Vec::new(), |ring| all.iter().map(|block| block % ring as u32).collect());
        WholePool { all, windows, state: 0 }
    }
    /// Share `nth` of `shares` equal ones, of so many blocks, for decode steps.
    pub fn share(engine: &Engine, [nth, shares]: [usize; 2], blocks: usize) -> WholePool {
        let all = (nth * blocks..(nth + 1) * blocks).map(|page| page as u32).collect();
        let ring = engine.cache().window_pages().map(|pages| pages / shares);
        let of_ring = |ring: usize| (0..blocks).map(|block| (nth * ring + block % ring) as u32).collect();
        WholePool { all, windows: ring.map_or(Vec::new(), of_ring), state: nth as u32 }
    }
    /// All of its pages.
    pub fn pages(&self) -> super::Pages<'_> {
        super::Pages { all: &self.all, windows: &self.windows, state: self.state }
    }
    /// A prefill chunk of the sequence, or a decode step of one token, with the logits of its last.
    pub fn step<'a>(&'a self, tokens: &'a [u32], position: usize) -> Step<'a> {
        let chunk = Chunk { tokens, position, pages: self.pages(), exact: false, logits: Logits::Last };
        Step { chunk: Some(chunk), contiguous: true, ..Step::default() }
    }
    /// A decode row of the sequence, greedy.
    pub fn row(&self, token: TokenSource, position: usize) -> DecodeRow<'_> {
        DecodeRow { token, position, pages: self.pages(), sampling: RowSampling::greedy() }
    }
}
