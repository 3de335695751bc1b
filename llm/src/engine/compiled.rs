//! Compilation of a model for a device, before its weights are loaded.

use super::activations::Activations;
use super::executor::{Engine, IN_FLIGHT};
use super::footprint::{Footprint, choose_context};
use super::graph_key::{
    CacheShape, GraphKey, Settings, StepLimits, batch_graph, cache_rows, depths, mixed_graphs,
    plan_options, sequence_graphs,
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
use gristmill_tensor::jit::{Jit, Planned};
use gristmill_uop::function::Function;
use gristmill_uop::machine::MachineKind;
use std::collections::VecDeque;
use std::sync::Arc;

/// Unit of memory sizes in error messages, in bytes.
const MB: u64 = 1_000_000;
/// Steps may take at most 1/8 of the memory left after the weights; steps of long prompts that
/// take more are shortened.
const LONG_CHUNK_SHARE: u64 = 8;
/// Partial results of attention may take at most 1/16 of a GPU's free memory in one step.
const ATTENTION_SHARE: usize = 16;
/// Minimum bytes for partial results of attention in one step; longer prompts run in smaller steps.
const ATTENTION_BYTES: usize = 256 << 20;

/// Returns the options of a decode step, used to query a model's cache sizes.
fn probe(settings: &Settings) -> Options {
    let (logits, tile, tokens) = (Logits::Last, Options::TILE, StepKind::Decode);
    let pools = Pools {
        states: 1,
        ..Pools::from_pages(1)
    };
    Options {
        tokens,
        rows: 64,
        pools,
        contiguous: true,
        depth: 64,
        cache: settings.cache,
        logits,
        tile,
    }
}

/// Returns the device memory available for allocation, in bytes.
fn available(device: &dyn Device) -> u64 {
    device.available().unwrap_or(u64::MAX / 2)
}

/// Sizes of steps and of the KV cache. They are chosen without the size of intermediates, which is
/// known only after compilation, so that a model that does not fit is refused early.
struct Sizes {
    settings: Settings,
    limits: StepLimits,
    context: usize,
    cache: CacheShape,
    depths: Vec<usize>,
}

impl Sizes {
    /// Chooses sizes for a device that may already hold weights of the same file
    /// (`loaded`).
    fn choose(
        file: &Gguf,
        model: &dyn Model,
        settings: Settings,
        loaded: &Weights,
        device: &dyn Device,
    ) -> Result<Sizes, Error> {
        let limits = StepLimits::new(&settings, model.context(), model, device.target());
        let parallel = settings.parallel.clamp(1, limits.chunk);
        let settings = Settings {
            chunk: limits.chunk,
            long: Some(limits.long),
            parallel,
            ..settings
        };
        let probe = probe(&settings);
        let left = memory_beside_weights(
            file,
            missing_weight_bytes(file, model, &probe, loaded),
            available(device),
        )?;
        let footprint = Footprint::new(model, &probe, &settings, MIN_ARENA_SHARE);
        let context = choose_context(&settings, model.context(), &footprint, left)?;
        let parallel = footprint.sequences(left);
        let pools = footprint.pools(context, parallel, left);
        let (settings, rows) = (
            Settings {
                parallel,
                ..settings
            }
            .over(pools),
            cache_rows(context, limits.long),
        );
        let cache = CacheShape {
            rows,
            pools,
            cache_type: settings.cache,
        };
        let depths = depths(&settings, rows, device.target());
        Ok(Sizes {
            settings,
            limits,
            context,
            cache,
            depths,
        })
    }
    /// Returns smaller settings if the allocations do not fit into the `left` bytes available after
    /// the weights. Steps of long prompts may be shortened only if their length `is_usual`.
    fn smaller(
        &self,
        footprint: &Footprint,
        longest: usize,
        left: u64,
        is_usual: bool,
    ) -> Result<Option<Settings>, Error> {
        let Sizes {
            settings,
            limits,
            context,
            cache,
            ..
        } = self;
        if is_usual
            && limits.long > limits.chunk
            && footprint.step_bytes() > left / LONG_CHUNK_SHARE
        {
            return Ok(Some(Settings {
                long: Some(limits.shorter()),
                ..settings.clone()
            }));
        }
        let fitting = choose_context(settings, longest, footprint, left)?;
        let crowded = footprint.with_pools(*context, cache.pools) > left;
        // Intermediates use memory planned for pages: halve contexts and sequences, down to one.
        let less = |n: usize| if crowded { (n / 2).max(1) } else { n };
        let (parallel, contexts) = (less(settings.parallel), less(settings.contexts));
        let shrinks = (parallel, contexts) != (settings.parallel, settings.contexts);
        let less = Settings {
            context: Some(fitting),
            parallel,
            contexts,
            ..settings.clone()
        };
        Ok((fitting < *context || shrinks).then_some(less))
    }
    /// Returns the limit on steps, from the graphs' plans and the planned functions.
    fn step_limit(
        &self,
        graphs: &[GraphKey],
        plans: &[Plan],
        ready: &[Arc<Planned>],
        device: &dyn Device,
    ) -> StepLimit {
        StepLimit {
            limits: self.limits,
            partials: StepLimit::partials(
                graphs
                    .iter()
                    .zip(plans)
                    .map(|(graph, plan)| (graph, partial(plan, ready))),
            ),
            attention_bytes: attention_bytes(device),
            rows: self.cache.rows,
        }
    }
    /// Returns the graphs to compile when the model is loaded.
    fn graphs(&self) -> Vec<GraphKey> {
        let others = self.settings.decode_rows();
        let mixed = others.map(|others| mixed_graphs(self.limits.chunk, self.cache.rows, others));
        sequence_graphs(self.limits, &self.depths)
            .into_iter()
            .chain(mixed.into_iter().flatten())
            .collect()
    }
    /// Returns the graphs to plan: those to compile, and the smallest batched decode step, so that
    /// the weight layouts suit it too.
    fn planned_graphs(&self) -> impl Iterator<Item = GraphKey> {
        let (parallel, rows) = (self.settings.parallel, self.cache.rows);
        let batches = (parallel > 1).then(|| batch_graph(2, parallel, rows));
        self.graphs().into_iter().chain(batches)
    }
    /// Returns the length of the first prompt if the kernels that it does not need may be compiled
    /// in the background: the C compiler runs beside steps, a GPU's might not.
    fn first_prompt(&self, device: &dyn Device) -> Option<usize> {
        let is_cpu = device.target().machine.kind == MachineKind::Cpu;
        self.settings.first_prompt.filter(|_| is_cpu)
    }
    /// Returns whether a graph must be compiled before the first token.
    fn is_first(&self, graph: &GraphKey, device: &dyn Device) -> bool {
        let prompt = self.first_prompt(device);
        prompt.is_none_or(|prompt| graph.serves_prompt(prompt, self.limits))
    }
    /// Returns the functions of `plans` that the first token needs, and the others. Plans after
    /// those of `graphs` are of batched steps.
    fn first_functions(
        &self,
        graphs: &[GraphKey],
        plans: &[Plan],
        device: &dyn Device,
    ) -> [Vec<Arc<Function>>; 2] {
        let is_first = |i: usize| match graphs.get(i) {
            Some(graph) => self.is_first(graph, device),
            None => self.first_prompt(device).is_none(),
        };
        [true, false].map(|first| {
            let of = plans
                .iter()
                .enumerate()
                .filter(|(i, _)| is_first(*i) == first);
            of.flat_map(|(_, plan)| plan.functions()).cloned().collect()
        })
    }
}

/// Returns the candidate sets that decode steps of one sequence sample from at load.
fn candidate_sets(device: &dyn Device) -> Vec<CandidateSet> {
    if device.overlaps() {
        vec![CandidateSet::Top1, CandidateSet::SmallTopK]
    } else {
        vec![CandidateSet::Top1]
    }
}

/// Returns the largest number of elements of a partial attention result among the plan's
/// functions in `ready`.
fn partial(plan: &Plan, ready: &[Arc<Planned>]) -> usize {
    let of_plan = ready.iter().filter(|r| {
        plan.functions()
            .iter()
            .any(|&f| Arc::ptr_eq(f, &r.function))
    });
    of_plan.map(|r| r.compiled.partial).max().unwrap_or(0)
}

/// A model compiled for a device. Its kernels fix the weight layouts, and hence which weights of
/// another engine can be reused.
pub struct CompiledModel<'a> {
    file: &'a Gguf,
    model: Box<dyn Model>,
    jit: Jit,
    functions: Functions,
    sizes: Sizes,
    /// Candidate sets that decode steps of one sequence sample from, for the
    /// graphs captured at load.
    choices: Vec<CandidateSet>,
    layouts: Layouts,
    footprint: Footprint,
    /// Bytes of the arena for intermediates: the maximum over all compiled steps.
    arena: usize,
    limit: StepLimit,
    /// Functions that the first token does not need; compiled in the background if not yet ready.
    rest: Vec<Arc<Function>>,
}

impl<'a> CompiledModel<'a> {
    /// Compiles a model for a device that may already hold weights of the same file
    /// (`loaded`).
    ///
    /// # Errors
    /// When the model is malformed or does not fit, or the device fails.
    pub fn new(
        file: &'a Gguf,
        opened: Opened,
        settings: Settings,
        loaded: &Weights,
        progress: &dyn Fn(Progress),
    ) -> Result<CompiledModel<'a>, Error> {
        let model = arch::load(file.metadata(), file)?;
        let mut jit = Jit::new(opened.clone());
        let device = jit.device().clone();
        let asked = settings.long;
        let again = |settings| CompiledModel::new(file, opened.clone(), settings, loaded, progress);
        let sizes = Sizes::choose(file, model.as_ref(), settings, loaded, &*device)?;
        let (settings, cache) = (&sizes.settings, &sizes.cache);
        let mut functions = Functions::new();
        let plan = |graph: GraphKey| {
            model.plan(&plan_options(graph, *cache, &opened.target), &mut functions)
        };
        let graphs = sizes.graphs();
        let plans: Vec<Plan> = sizes.planned_graphs().map(plan).collect();
        let choices = candidate_sets(&*device);
        let choice = |among: &CandidateSet| functions.share(among.function(model.vocabulary(), 1));
        let chosen: Vec<_> = choices.iter().map(choice).collect();
        let planned = plans
            .iter()
            .flat_map(|p| p.functions().into_iter().cloned());
        let all: Vec<_> = planned.chain(chosen.iter().cloned()).collect();
        let planned = jit.plan(&all, &|done, total| {
            progress(Progress::Planning(done, total))
        });
        let arena = planned.iter().map(|f| f.compiled.arena).max();
        let arena = arena.unwrap_or(0).max(MIN_ARENA_SHARE);
        let layouts = match (
            load::common_layouts(&mut jit, &plans),
            settings.decode_rows(),
        ) {
            (Ok(layouts), _) => layouts,
            // Alternatives of two attentions that share a weight are decided one after the other,
            // so neither may have the common layout yet. Compile again without mixed steps.
            (Err(_), Some(_)) => return again(settings.without_mixed(asked)),
            (Err(_), None) => load::layouts(&mut jit, &plans)?,
        };
        // Check again, now that all allocations are known.
        let footprint = Footprint::new(model.as_ref(), &probe(settings), settings, arena);
        let missing = load::missing(file, &layouts, loaded);
        let left = memory_beside_weights(file, missing, available(&*device))?;
        let is_usual = asked.is_none_or(StepLimits::is_usual);
        if let Some(smaller) = sizes.smaller(&footprint, model.context(), left, is_usual)? {
            return again(smaller);
        }
        let limit = sizes.step_limit(&graphs, &plans, &planned, &*device);
        // Only now, as other sizes have other kernels.
        let [mut first, rest] = sizes.first_functions(&graphs, &plans, &*device);
        first.extend(chosen);
        jit.prepare(&first, &|done, total| {
            progress(Progress::Compiling(done, total))
        })?;
        Ok(CompiledModel {
            rest,
            file,
            model,
            jit,
            functions,
            sizes,
            choices,
            layouts,
            footprint,
            arena,
            limit,
        })
    }

    /// Returns the bytes that loading allocates: missing weights, KV cache and activations.
    pub fn memory(&self, loaded: &Weights) -> u64 {
        self.missing(loaded)
            + self
                .footprint
                .with_pools(self.sizes.context, self.sizes.cache.pools)
    }

    /// Returns the bytes of weights that loading must allocate, without those already in
    /// `loaded`.
    pub fn missing(&self, loaded: &Weights) -> u64 {
        load::missing(self.file, &self.layouts, loaded)
    }

    /// Loads the weights and captures the graphs.
    ///
    /// Weights in `loaded`, from an engine of the same file on the same device, are reused
    /// if this model's kernels read the same layout. The others are released before loading starts,
    /// unless that engine or a clone still holds them.
    ///
    /// # Errors
    /// When memory is short, or the device fails.
    pub fn load(self, loaded: Weights, progress: &dyn Fn(Progress)) -> Result<Engine, Error> {
        let mut graphs = self.sizes.graphs();
        let device = self.jit.device();
        graphs.retain(|graph| self.sizes.is_first(graph, &**device));
        let CompiledModel {
            file,
            model,
            mut jit,
            sizes,
            choices,
            limit,
            ..
        } = self;
        let Sizes {
            settings,
            context,
            cache,
            depths,
            limits,
        } = sizes;
        let weights = load::weights(file, &mut jit, &self.layouts, loaded, progress)?;
        jit.prepare_in_background(&self.rest);
        let device = jit.device().clone();
        let tokens = limits.long + settings.decode_rows().unwrap_or(0);
        let rows_of_logits = limits.chunk.max(settings.parallel);
        let blocks = cache.rows / Options::PAGE;
        let inputs = || {
            let sizes = [settings.parallel, tokens];
            StepInputs::new(&*device, cache.pools, blocks, sizes, model.choices())
        };
        let sizes = [tokens, rows_of_logits, cache.rows];
        let mut engine = Engine {
            inputs: [inputs()?, inputs()?],
            activations: Activations::new(
                &*device,
                model.as_ref(),
                sizes,
                context,
                settings.cache,
            )?,
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
        // Capture the graphs that every sequence needs: decode steps and prefill chunks. Those that
        // are compiled in the background are captured at their first step.
        for graph in graphs {
            let keys: Vec<_> = match graph.tokens {
                1 => choices
                    .iter()
                    .map(|&among| engine.plain(graph, Some(among)))
                    .collect(),
                _ => vec![engine.plain(graph, None)],
            };
            keys.iter()
                .try_for_each(|key| engine.prepare(key, progress))?;
        }
        Ok(engine)
    }
}

/// The context and memory of an engine, estimated from the file's metadata without
/// compiling or reading weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryEstimate {
    /// Context length in tokens.
    pub context: usize,
    /// Bytes of the weights in the file; on a device they may take slightly more.
    pub weights: u64,
    /// Bytes of the KV cache and of step buffers, without intermediates,
    /// which only compiling determines.
    pub non_weight_bytes: u64,
}

impl MemoryEstimate {
    /// Estimates an engine of this file on a device with `available` bytes.
    ///
    /// # Errors
    /// The errors of [`CompiledModel::new`] that occur before compiling: the model is malformed
    /// or does not fit.
    pub fn new(file: &Gguf, settings: &Settings, available: u64) -> Result<MemoryEstimate, Error> {
        let model = arch::load(file.metadata(), file)?;
        let chunk = settings.chunk.clamp(1, model.context());
        let settings = &Settings {
            chunk,
            long: settings.long.or(Some(chunk)),
            ..settings.clone()
        };
        let probe = probe(settings);
        let weights = missing_weight_bytes(file, model.as_ref(), &probe, &Weights::default());
        let left = memory_beside_weights(file, weights, available)?;
        let footprint = Footprint::new(model.as_ref(), &probe, settings, MIN_ARENA_SHARE);
        let context = choose_context(settings, model.context(), &footprint, left)?;
        let parallel = footprint.sequences(left);
        let pools = footprint.pools(context, parallel, left);
        let settings = Settings {
            parallel,
            ..settings.clone()
        };
        let footprint = Footprint::new(
            model.as_ref(),
            &probe,
            &settings.over(pools),
            MIN_ARENA_SHARE,
        );
        Ok(MemoryEstimate {
            context,
            weights,
            non_weight_bytes: footprint.with_pools(context, pools),
        })
    }
}

impl Engine {
    /// Compiles a model, loads it onto a device and captures its graphs. `progress` is
    /// called on this thread.
    ///
    /// # Errors
    /// As for [`CompiledModel::new`] and [`CompiledModel::load`].
    pub fn load(
        file: &Gguf,
        opened: Opened,
        settings: Settings,
        progress: &dyn Fn(Progress),
    ) -> Result<Engine, Error> {
        let none = Weights::default();
        CompiledModel::new(file, opened, settings, &none, progress)?.load(none, progress)
    }
}

/// Returns the bytes left after `weights` bytes are taken from `available`.
fn memory_beside_weights(file: &Gguf, weights: u64, available: u64) -> Result<u64, Error> {
    available.checked_sub(weights).ok_or_else(|| {
        let fitting = synth::fitting(file.metadata(), available);
        Error::Weights {
            need: weights / MB,
            available: available / MB,
            fitting,
        }
    })
}

/// Minimum arena size in bytes: a device need not support empty allocations.
const MIN_ARENA_SHARE: usize = 64;

/// Returns the bytes that partial results of attention may take in one step.
fn attention_bytes(device: &dyn Device) -> usize {
    match device.target().machine.kind {
        MachineKind::Gpu => {
            ATTENTION_BYTES.max(device.available().unwrap_or(0) as usize / ATTENTION_SHARE)
        }
        MachineKind::Cpu => ATTENTION_BYTES,
    }
}

/// Returns the bytes of the weights in the file that are missing from `loaded`.
fn missing_weight_bytes(file: &Gguf, model: &dyn Model, probe: &Options, loaded: &Weights) -> u64 {
    let plan = model.plan(probe, &mut Functions::new());
    let absent = plan
        .weights()
        .into_iter()
        .filter(|n| loaded.get(n).is_none());
    absent.filter_map(|n| file.tensor(n)).map(|t| t.bytes).sum()
}
