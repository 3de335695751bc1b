//! Queries on an engine: sizes, cache access, plans, launches and memory traffic.

use super::device_buffers::DeviceBuffers;
use super::executor::Engine;
use super::expert_cache::ExpertCacheStats;
use super::graph_key::{GraphKey, StepLimits, batch_graph};
use super::graphs::{CaptureKey, Captured, StepKey, Tokens};
use super::kv_cache::KvCache;
use super::pages::{PageCopy, StateCopy};
use super::step::{Chunk, DecodeRow, Step, TokenSource};
use crate::arch::{Logits, Model, Plan};
use crate::error::{Error, Progress};
use crate::load::Weights;
use crate::placement::{PlacementChoice, is_cached};
use crate::sampling::{CandidateSet, RowSampling, SamplingMethod};
use crate::traffic::{self, Traffic};
use gristmill_runtime::{Buffer, StepTrace};
use gristmill_tensor::jit::Ready;
use gristmill_uop::machine::MachineKind;
use std::sync::{Arc, PoisonError};

impl Engine {
    /// The loaded model architecture.
    pub fn model(&self) -> &dyn Model {
        self.model.as_ref()
    }
    /// Where the model's parts are.
    pub fn placement(&self) -> &PlacementChoice {
        &self.placement
    }
    /// What lookups of cached experts found, if layers have any.
    pub fn expert_cache(&self) -> Option<ExpertCacheStats> {
        let cache = self.expert_cache.lock();
        let stats = cache.unwrap_or_else(PoisonError::into_inner).stats();
        (stats.slots > 0).then_some(stats)
    }
    /// Context length in tokens.
    pub fn context(&self) -> usize {
        self.context
    }
    /// Maximum sequences in one step.
    pub fn max_sequences(&self) -> usize {
        self.settings.parallel
    }
    /// Maximum decode rows of one step: those of sequences, and drafts.
    pub fn step_rows(&self) -> usize {
        self.settings.rows()
    }
    /// Tokens of the prefill chunk of the last step that had one, or of its last part.
    pub fn last_chunk_tokens(&self) -> usize {
        self.chunk_tokens
    }
    /// Maximum tokens in one step, except in steps of long prompts.
    pub fn chunk(&self) -> usize {
        self.limit.limits.chunk
    }
    /// Maximum tokens in a step of a long prompt.
    pub fn longest_step(&self) -> usize {
        self.limit.limits.long
    }
    /// Maximum tokens of a prompt that a call of [`Engine::run`] runs at full speed: several steps,
    /// where devices work on different parts of a prompt at a time.
    pub fn longest_run(&self) -> usize {
        match self.is_pipelined() {
            true => self.longest_step().max(StepLimits::LONGEST),
            false => self.longest_step(),
        }
    }
    /// The KV cache of all layers.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }
    /// The weights, for reuse by another engine of the same file on the same device; see
    /// [`CompiledModel::load`](super::CompiledModel::load).
    pub fn weights(&self) -> &Weights {
        &self.main().weights
    }
    /// The weights on a device, by its index in the placement: 0 for the main device.
    pub fn weights_on(&self, device: usize) -> &Weights {
        &self.on[device].weights
    }
    /// Bytes of all device memory: weights, KV cache, activations. Cache rows that were never used
    /// may not occupy memory yet.
    pub fn memory_bytes(&self) -> u64 {
        let candidates = self.candidates.iter().flat_map(|rows| rows.buffers());
        let of_devices = self.on.iter().flat_map(DeviceBuffers::buffers);
        let buffers = self.cache.buffers().chain(of_devices).chain(candidates);
        let beside = buffers
            .map(|buffer: &Buffer| buffer.len() as u64)
            .sum::<u64>();
        let weights: u64 = self.on.iter().map(|on| on.weights.bytes()).sum();
        weights + self.stream.bytes() + beside + self.graphs.arena_bytes() as u64
    }
    /// Returns whether the KV cache is in host memory; swapping pages out gains nothing then.
    pub fn cache_is_on_host(&self) -> bool {
        self.device().target().machine.kind == MachineKind::Cpu
    }
    /// Returns whether the device samples with this method faster than the host. It always finds
    /// the largest logit; other methods take many small kernels, which a CPU device runs slower
    /// than one pass on the host.
    pub fn supports_sampling(&self, choice: SamplingMethod) -> bool {
        choice == SamplingMethod::Greedy || self.device().overlaps()
    }
    /// Reads a page of all layers into `rows`.
    ///
    /// # Errors
    /// When there is no such page, there is a window pool, or the device fails.
    pub fn read_page(&mut self, page: u32, rows: &mut Vec<u8>) -> Result<(), Error> {
        self.finish()?;
        self.cache.read_page(page, rows)
    }
    /// Writes a page that [`Engine::read_page`] read.
    ///
    /// # Errors
    /// As for [`Engine::read_page`].
    pub fn write_page(&mut self, page: u32, rows: &[u8]) -> Result<(), Error> {
        self.finish()?;
        self.cache.write_page(page, rows)
    }
    /// Copies a page of the pool, and of the window pool if `copy` names one.
    ///
    /// # Errors
    /// When a page does not exist, or the device fails.
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
    /// When a row does not exist, or the device fails.
    pub fn copy_state(&mut self, copy: &StateCopy) -> Result<(), Error> {
        self.finish()?;
        self.copy_state_row(copy)
    }
    /// Compiles and captures the graphs that compute logits of all of `tokens` tokens. Otherwise
    /// this happens at their first step.
    ///
    /// # Errors
    /// When the device fails.
    pub fn prepare_all_logits(
        &mut self,
        tokens: usize,
        progress: &dyn Fn(Progress),
    ) -> Result<(), Error> {
        let chunk = self.chunk();
        for n in [tokens.min(chunk), tokens % chunk]
            .into_iter()
            .filter(|&n| n > 1)
        {
            let graph = self.chunk_key(n, Logits::All, 0);
            self.prepare(&self.plain(graph, None), progress)?;
        }
        Ok(())
    }
    /// Compiles and captures batched decode steps of `sequences` sequences. Otherwise this happens
    /// at the first such step.
    ///
    /// # Errors
    /// When the device fails.
    pub fn prepare_batch(
        &mut self,
        sequences: usize,
        progress: &dyn Fn(Progress),
    ) -> Result<(), Error> {
        let graph = self.rows_key(sequences.clamp(1, self.max_sequences()), 0);
        self.prepare(&self.plain(graph, Some(CandidateSet::Top1)), progress)
    }
    /// Returns the step key of a graph with tokens written by the host.
    pub(super) fn plain(&self, graph: GraphKey, among: Option<CandidateSet>) -> StepKey {
        StepKey {
            graph,
            set: 0,
            tokens: Tokens::Given,
            state_row: 0,
            among,
        }
    }
    fn chunk_key(&self, tokens: usize, logits: Logits, position: usize) -> GraphKey {
        match self.limit.bucket(tokens) {
            1 => self.decode_graph(position),
            tokens => GraphKey {
                tokens,
                logits,
                depth: self.rows(),
                ..self.decode_graph(position)
            },
        }
    }
    pub(super) fn rows_key(&self, sequences: usize, position: usize) -> GraphKey {
        match sequences {
            1 => self.decode_graph(position),
            n => batch_graph(n, self.max_sequences(), self.rows()),
        }
    }
    /// Returns the token bucket of a prefill chunk of `tokens` tokens.
    pub fn step_tokens(&self, tokens: usize) -> usize {
        self.limit.bucket(tokens)
    }
    /// Returns the plan of a prefill chunk of `tokens` tokens, or of a decode step if that is 1.
    ///
    /// # Errors
    /// When a layer cannot be placed as it is.
    pub fn step_plan(&mut self, tokens: usize, position: usize) -> Result<Plan, Error> {
        self.plan(self.chunk_key(tokens, Logits::Last, position))
    }
    /// Returns the function and program of every launch of a captured step: a prefill chunk with
    /// the logits of its last token, or a decode step if `tokens` is 1. Empty if none was captured.
    pub fn step_launches(&self, tokens: usize, position: usize) -> &[(Arc<Ready>, usize)] {
        self.launches_of(&self.chunk_key(tokens, Logits::Last, position), false)
    }
    /// Returns the number of launches of such a step that run.
    pub fn step_launch_count(&self, tokens: usize, position: usize) -> usize {
        let key = self.chunk_key(tokens, Logits::Last, position);
        let captured = self.graphs.captured_step(&key, false);
        captured.map_or(0, |of| of.launches.len() - of.passed)
    }
    /// Returns the function and program of every launch of a captured batched decode step.
    pub fn batch_launches(&self, sequences: usize) -> &[(Arc<Ready>, usize)] {
        self.launches_of(&self.rows_key(sequences, 0), true)
    }
    pub(super) fn launches_of(&self, graph: &GraphKey, samples: bool) -> &[(Arc<Ready>, usize)] {
        self.graphs
            .captured_step(graph, samples)
            .map_or(&[], |captured: &Captured| &captured.launches)
    }
    /// Returns the bytes that a step of `tokens` tokens at `position` must read.
    pub fn traffic(&mut self, tokens: usize, position: usize) -> Traffic {
        let Ok(plan) = self.plan(self.decode_graph(position)) else {
            unreachable!("the same layers were separated at load")
        };
        // Each chosen expert is read once, wherever it is.
        let plan = plan.without_cached();
        let bytes = |name: &str| {
            if is_cached(name) {
                return 0;
            }
            let mut of = self.on.iter().filter_map(|on| on.weights.get(name));
            of.next().map_or(0, |b| b.len() as u64)
        };
        let rows = position + tokens.saturating_sub(1) / 2 + 1;
        // Recurrent states are also written, which counts as a second read.
        let cache = traffic::cache(&plan, rows) + (2 * self.model.state_bytes()) as f64;
        Traffic {
            weights: traffic::weights(&plan, tokens, &bytes),
            cache,
        }
    }
    /// Number of steps that were captured so far; what they need was compiled then.
    pub fn captures(&self) -> u64 {
        self.graphs.captures
    }
    /// Number of distinct compiled functions.
    pub fn compiled(&self) -> usize {
        self.graphs
            .units
            .iter()
            .map(|unit| unit.jit.compiled())
            .sum()
    }
    /// Runs a step and returns the time span of each launch on each worker, and of the copies
    /// between devices. Parts on several devices then run one after the other.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    pub fn run_traced(&mut self, step: &Step) -> Result<StepTrace, Error> {
        self.finish()?;
        let (key, variables) = self.prepare_single(step)?;
        let trace = self
            .graphs
            .prepared(&CaptureKey::Step(key))
            .replay
            .replay_traced(&variables)?;
        let mut logits = Vec::new();
        self.row_logits(0, &mut logits)?;
        Ok(trace)
    }
    /// Runs a step and returns the seconds of every launch.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    pub fn run_timed(&mut self, step: &Step) -> Result<Vec<f64>, Error> {
        self.finish()?;
        let (key, variables) = self.prepare_single(step)?;
        Ok(self
            .graphs
            .prepared(&CaptureKey::Step(key))
            .replay
            .replay_timed(&variables)?)
    }
}

/// The pages of one sequence that owns the whole pool or a share of it, and steps of it.
#[derive(Clone, Debug)]
pub struct WholePool {
    all: Vec<u32>,
    windows: Vec<u32>,
    state: u32,
}

impl WholePool {
    /// Takes the first pages of an engine's pool, enough for its whole context.
    pub fn new(engine: &Engine) -> WholePool {
        let blocks = engine.rows() / crate::arch::Options::PAGE;
        let all: Vec<u32> = (0..blocks as u32).collect();
        let ring = engine.cache().window_pages();
        let windows = ring.map_or(Vec::new(), |ring| {
            all.iter().map(|block| block % ring as u32).collect()
        });
        WholePool {
            all,
            windows,
            state: 0,
        }
    }
    /// Takes share `nth` of `shares` equal shares, of `blocks` pages each, for decode steps.
    pub fn share(engine: &Engine, [nth, shares]: [usize; 2], blocks: usize) -> WholePool {
        let all = (nth * blocks..(nth + 1) * blocks)
            .map(|page| page as u32)
            .collect();
        let ring = engine.cache().window_pages().map(|pages| pages / shares);
        let of_ring = |ring: usize| {
            (0..blocks)
                .map(|block| (nth * ring + block % ring) as u32)
                .collect()
        };
        WholePool {
            all,
            windows: ring.map_or(Vec::new(), of_ring),
            state: nth as u32,
        }
    }
    /// The sequence's pages, window pages and state row.
    pub fn pages(&self) -> super::Pages<'_> {
        super::Pages {
            all: &self.all,
            windows: &self.windows,
            state: self.state,
            ..super::Pages::default()
        }
    }
    /// Returns a step with a prefill chunk of the sequence and the logits of its last token.
    pub fn step<'a>(&'a self, tokens: &'a [u32], position: usize) -> Step<'a> {
        let chunk = Chunk {
            tokens,
            position,
            pages: self.pages(),
            exact: false,
            logits: Logits::Last,
            fills_drafts: false,
        };
        Step {
            chunk: Some(chunk),
            contiguous: true,
            ..Step::default()
        }
    }
    /// Returns a greedy decode row of the sequence.
    pub fn row(&self, token: TokenSource, position: usize) -> DecodeRow<'_> {
        DecodeRow {
            token,
            position,
            pages: self.pages(),
            sampling: RowSampling::greedy(),
        }
    }
}
