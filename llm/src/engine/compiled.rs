//! Between a file and an engine: everything compiled, no weights yet.

use super::activations::Activations;
use super::executor::{Engine, IN_FLIGHT};
use super::footprint::{Footprint, choose_context};
use super::graph_key::{
    CacheShape, GraphKey, Settings, StepLimits, batch_graph, cache_rows, depths, mixed_graphs, plan_options,
    sequence_graphs,
};
use super::graphs::Graphs;
use super::inputs::StepInputs;
use super::kv_cache::KvCache;
use super::step_limit::StepLimit;
use crate::arch::{self, Functions, Logits, Model, Options, Plan, Pools, StepKind};
use crate::error::{Error, Progress};
use crate::gguf::Gguf;
use crate::load::{self, Layouts, Weights};
use crate::sampling::CandidateSet;
use crate::synth;
use gristmill_backend::Opened;
use gristmill_runtime::Device;
use gristmill_tensor::jit::{Jit, Ready};
use gristmill_uop::machine::MachineKind;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of a megabyte in messages.
const MB: u64 = 1_000_000;
/// The part of memory that steps may take beside weights and cache: steps of long prompts that take more are shortened.
const LONG_CHUNK_SHARE: u64 = 8;
/// The part of a GPU's free memory that partial results of attention may take in one step.
const ATTENTION_SHARE: usize = 16;
/// Bytes that partial results of attention may take in one step, at least; longer prompts go in smaller steps.
const ATTENTION_BYTES: usize = 256 << 20;

/// A step that every model has, to ask it what it keeps.
fn probe(settings: &Settings) -> Options {
    let (logits, tile, tokens) = (Logits::Last, Options::TILE, StepKind::Decode);
    let pools = Pools { states: 1, ..Pools::from_pages(1) };
    Options { tokens, rows: 64, pools, contiguous: true, depth: 64, cache: settings.cache, logits, tile }
}

/// Bytes of a device's memory that may be taken.
fn available(device: &dyn Device) -> u64 {
    device.available().unwrap_or(u64::MAX / 2)
}

/// What steps and the cache are made for: chosen without intermediates, which only compiling tells, as it is cheap to refuse.
struct Sizes {
    settings: Settings,
    limits: StepLimits,
    context: usize,
    cache: CacheShape,
    depths: Vec<usize>,
}

impl Sizes {
    /// Sizes for a device that may hold weights of the same file already.
    fn choose(
        file: &Gguf,
        model: &dyn Model,
        settings: Settings,
        there: &Weights,
        device: &dyn Device,
    ) -> Result<Sizes, Error> {
        let limits = StepLimits::new(&settings, model.context(), model, device.target());
        let parallel = settings.parallel.clamp(1, limits.chunk);
        let settings = Settings { chunk: limits.chunk, long: Some(limits.long), parallel, ..settings };
        let probe = probe(&settings);
        let left = memory_beside_weights(file, missing_weight_bytes(file, model, &probe, there), available(device))?;
        let footprint = Footprint::new(model, &probe, &settings, MIN_ARENA_SHARE);
        let context = choose_context(&settings, model.context(), &footprint, left)?;
        let parallel = footprint.sequences(left);
        let pools = footprint.pools(context, parallel, left);
        let (settings, rows) = (Settings { parallel, ..settings }.over(pools), cache_rows(context, limits.long));
        let cache = CacheShape { rows, pools, scalar: settings.cache };
        let depths = depths(&settings, rows, device.target());
        Ok(Sizes { settings, limits, context, cache, depths })
    }
    /// Smaller settings, where the allocations do not leave room for these in so many bytes beside the
    /// weights; steps of long prompts may be shorter where their length `is_usual`.
    fn smaller(
        &self,
        footprint: &Footprint,
        longest: usize,
        left: u64,
        is_usual: bool,
    ) -> Result<Option<Settings>, Error> {
        let Sizes { settings, limits, context, cache, .. } = self;
        if is_usual && limits.long > limits.chunk && footprint.step_bytes() > left / LONG_CHUNK_SHARE {
            return Ok(Some(Settings { long: Some(limits.shorter()), ..settings.clone() }));
        }
        let fitting = choose_context(settings, longest, footprint, left)?;
        let crowded = footprint.with_pools(*context, cache.pools) > left;
        // Intermediates take what was meant for pages: fewer contexts and sequences, one at last.
        let less = |n: usize| if crowded { (n / 2).max(1) } else { n };
        let (parallel, contexts) = (less(settings.parallel), less(settings.contexts));
        let shrinks = (parallel, contexts) != (settings.parallel, settings.contexts);
        let less = Settings { context: Some(fitting), parallel, contexts, ..settings.clone() };
        Ok((fitting < *context || shrinks).then_some(less))
    }
    /// The graphs that are compiled when a model is loaded.
    fn graphs(&self) -> Vec<GraphKey> {
        let others = self.settings.decode_rows();
        let mixed = others.map(|others| mixed_graphs(self.limits.chunk, self.cache.rows, others));
        sequence_graphs(self.limits, &self.depths).into_iter().chain(mixed.into_iter().flatten()).collect()
    }
}

/// The most numbers of a partial result of attention in the functions of a plan that are `ready`.
fn partial(plan: &Plan, ready: &[Arc<Ready>]) -> usize {
    let of_plan = ready.iter().filter(|r| plan.functions().iter().any(|&f| Arc::ptr_eq(f, &r.function)));
    of_plan.map(|r| r.compiled.partial).max().unwrap_or(0)
}

/// A model compiled for a device. Its kernels say how weights lie in memory, and so which of another engine's they can read.
pub struct CompiledModel<'a> {
    file: &'a Gguf,
    model: Box<dyn Model>,
    jit: Jit,
    functions: Functions,
    sizes: Sizes,
    /// Ids that decode steps of one sequence choose among, of the graphs that are captured at load.
    choices: Vec<CandidateSet>,
    layouts: Layouts,
    footprint: Footprint,
    /// Bytes of intermediates that every step so far takes at most.
    arena: usize,
    limit: StepLimit,
}

impl<'a> CompiledModel<'a> {
    /// Compiles a model for a device that may hold weights of the same file already.
    ///
    /// # Errors
    /// When the model is malformed or does not fit, or the device fails.
    pub fn new(
        file: &'a Gguf,
        opened: Opened,
        settings: Settings,
        there: &Weights,
        progress: &dyn Fn(Progress),
    ) -> Result<CompiledModel<'a>, Error> {
        let model = arch::load(file.metadata(), file)?;
        let mut jit = Jit::new(opened.clone());
        let device = jit.device().clone();
        let asked = settings.long;
        let again = |settings| CompiledModel::new(file, opened.clone(), settings, there, progress);
        let sizes = Sizes::choose(file, model.as_ref(), settings, there, &*device)?;
        let Sizes { settings, cache, .. } = &sizes;
        let mut functions = Functions::new();
        let plan = |graph: GraphKey| model.plan(&plan_options(graph, *cache, &opened.target), &mut functions);
        let graphs = sizes.graphs();
        // The least batched decode step: weights lie for it too.
        let batches = (settings.parallel > 1).then(|| batch_graph(2, settings.parallel, cache.rows));
        let plans: Vec<Plan> = graphs.iter().copied().chain(batches).map(plan).collect();
        let choices = if device.overlaps() {
            vec![CandidateSet::Top1, CandidateSet::SmallTopK]
        } else {
            vec![CandidateSet::Top1]
        };
        let choice = |among: &CandidateSet| functions.share(among.function(model.vocabulary(), 1));
        let planned = plans.iter().flat_map(|p| p.functions().into_iter().cloned());
        let all: Vec<_> = planned.chain(choices.iter().map(choice)).collect();
        let ready = jit.prepare(&all, &|done, total| progress(Progress::Compiling(done, total)))?;
        let arena = Jit::arena(&ready).max(MIN_ARENA_SHARE);
        let layouts = match load::common_layouts(&mut jit, &plans)? {
            Ok(layouts) => layouts,
            // Alternatives of two attentions that share a weight are decided one after the other:
            // neither may have the layout that it must have before the other does.
            Err(_) if settings.decode_rows().is_some() => {
                return again(Settings { long: asked, mixed: false, ..settings.clone() });
            }
            Err(_) => load::layouts(&mut jit, &plans)?,
        };
        // Once more, now that all is known that will be allocated.
        let footprint = Footprint::new(model.as_ref(), &probe(settings), settings, arena);
        let left = memory_beside_weights(file, load::missing(file, &layouts, there), available(&*device))?;
        let is_usual = asked.is_none_or(StepLimits::is_usual);
        if let Some(smaller) = sizes.smaller(&footprint, model.context(), left, is_usual)? {
            return again(smaller);
        }
        let limit = StepLimit {
            limits: sizes.limits,
            partials: StepLimit::partials(
                graphs.iter().zip(&plans).map(|(graph, plan)| (graph, partial(plan, &ready))),
            ),
            attention_bytes: attention_bytes(&*device),
            rows: cache.rows,
        };
        Ok(CompiledModel { file, model, jit, functions, sizes, choices, layouts, footprint, arena, limit })
    }

    /// Bytes that loading allocates, beside weights that are there: weights, the context's state, activations.
    pub fn memory(&self, there: &Weights) -> u64 {
        self.missing(there) + self.footprint.with_pools(self.sizes.context, self.sizes.cache.pools)
    }

    /// Bytes of weights that loading takes beside those that are there.
    pub fn missing(&self, there: &Weights) -> u64 {
        load::missing(self.file, &self.layouts, there)
    }

    /// Loads the weights. What is `there`, of an engine of the same file on the same device, is taken over where this one's kernels read it as
    /// it lies; the rest of it goes before anything is loaded, unless that engine, or a clone, still has it.
    ///
    /// # Errors
    /// When memory is short, or the device fails.
    pub fn load(self, there: Weights, progress: &dyn Fn(Progress)) -> Result<Engine, Error> {
        let graphs = self.sizes.graphs();
        let CompiledModel { file, model, mut jit, sizes, choices, limit, .. } = self;
        let Sizes { settings, context, cache, depths, limits } = sizes;
        let weights = load::weights(file, &mut jit, &self.layouts, there, progress)?;
        let device = jit.device().clone();
        let tokens = limits.long + settings.decode_rows().unwrap_or(0);
        let rows_of_logits = limits.chunk.max(settings.parallel);
        let blocks = cache.rows / Options::PAGE;
        let inputs = || StepInputs::new(&*device, cache.pools, blocks, settings.parallel, tokens);
        let sizes = [tokens, rows_of_logits, cache.rows];
        let mut engine = Engine {
            inputs: [inputs()?, inputs()?],
            activations: Activations::new(&*device, model.as_ref(), sizes, context)?,
            cache: KvCache::new(&device, model.as_ref(), cache)?,
            graphs: Graphs::new(jit, self.functions, self.arena)?,
            weights,
            model,
            settings,
            context,
            in_flight: VecDeque::with_capacity(IN_FLIGHT),
            candidates: None,
            state_copy: None,
            limit,
            depths,
        };
        // Captures what every sequence needs: decode steps and prefill chunks.
        for graph in graphs {
            let keys: Vec<_> = match graph.tokens {
                1 => choices.iter().map(|&among| engine.plain(graph, Some(among))).collect(),
                _ => vec![engine.plain(graph, None)],
            };
            keys.iter().try_for_each(|key| engine.prepare(key, progress))?;
        }
        Ok(engine)
    }
}

/// What an engine will be, as far as the file's head and the device tell: nothing is compiled and no weight is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryEstimate {
    /// Tokens of context.
    pub context: usize,
    /// Bytes of the weights as they lie in the file; on a device they may take a little more.
    pub weights: u64,
    /// Bytes of the cache and of what steps need beside it, but for intermediates, which compiling tells.
    pub beside: u64,
}

impl MemoryEstimate {
    /// Estimates an engine of this file on a device with so many bytes available.
    ///
    /// # Errors
    /// Those of [`CompiledModel::new`] that need no compiler: a model that is none, or does not fit.
    pub fn new(file: &Gguf, settings: &Settings, available: u64) -> Result<MemoryEstimate, Error> {
        let model = arch::load(file.metadata(), file)?;
        let chunk = settings.chunk.clamp(1, model.context());
        let settings = &Settings { chunk, long: settings.long.or(Some(chunk)), ..settings.clone() };
        let probe = probe(settings);
        let weights = missing_weight_bytes(file, model.as_ref(), &probe, &Weights::default());
        let left = memory_beside_weights(file, weights, available)?;
        let footprint = Footprint::new(model.as_ref(), &probe, settings, MIN_ARENA_SHARE);
        let context = choose_context(settings, model.context(), &footprint, left)?;
        let parallel = footprint.sequences(left);
        let pools = footprint.pools(context, parallel, left);
        let settings = Settings { parallel, ..settings.clone() };
        let footprint = Footprint::new(model.as_ref(), &probe, &settings.over(pools), MIN_ARENA_SHARE);
        Ok(MemoryEstimate { context, weights, beside: footprint.with_pools(context, pools) })
    }
}

impl Engine {
    /// Loads a model onto a device and compiles what it needs. `progress` is called from this thread.
    ///
    /// # Errors
    /// As for [`CompiledModel::new`] and [`CompiledModel::load`].
    pub fn load(file: &Gguf, opened: Opened, settings: Settings, progress: &dyn Fn(Progress)) -> Result<Engine, Error> {
        let none = Weights::default();
        CompiledModel::new(file, opened, settings, &none, progress)?.load(none, progress)
    }
}

/// Bytes that weights of so many bytes leave of those that are available.
fn memory_beside_weights(file: &Gguf, weights: u64, available: u64) -> Result<u64, Error> {
    available.checked_sub(weights).ok_or_else(|| {
        let fitting = synth::fitting(file.metadata(), available);
        Error::Weights { need: weights / MB, available: available / MB, fitting }
    })
}

/// An arena has at least so many bytes, though no step has intermediates: devices need not allocate nothing.
const MIN_ARENA_SHARE: usize = 64;

/// Bytes that partial results of attention may take in one step.
fn attention_bytes(device: &dyn Device) -> usize {
    match device.target().machine.kind {
        MachineKind::Gpu => ATTENTION_BYTES.max(device.available().unwrap_or(0) as usize / ATTENTION_SHARE),
        MachineKind::Cpu => ATTENTION_BYTES,
    }
}

/// Bytes of the file's weights of which none of that name is there.
fn missing_weight_bytes(file: &Gguf, model: &dyn Model, probe: &Options, there: &Weights) -> u64 {
    let plan = model.plan(probe, &mut Functions::new());
    let absent = plan.weights().into_iter().filter(|n| there.get(n).is_none());
    absent.filter_map(|n| file.tensor(n)).map(|t| t.bytes).sum()
}
