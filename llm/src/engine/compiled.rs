//! Compilation of a model for a device, before its weights are loaded.

use super::activations::Activations;
use super::device_buffers::{CutBuffers, DeviceBuffers};
use super::executor::{Engine, IN_FLIGHT};
use super::expert_stream::ExpertStream;
use super::footprint::{Footprint, choose_context};
use super::graph_key::{
    CacheShape, GraphKey, Settings, StepLimits, batch_graph, cache_rows, depths, mixed_graphs,
    plan_options, sequence_graphs,
};
use super::graphs::{GraphUnit, Graphs};
use super::inputs::StepInputs;
use super::kv_cache::KvCache;
use super::step_limit::StepLimit;
use crate::arch::{self, Functions, Logits, Model, Options, Plan, Pools, StepKind};
use crate::error::{Error, Progress};
use crate::gguf::Gguf;
use crate::load::{self, Layouts, Weights};
use crate::placement::{Placement, PlacementChoice, Splitter};
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
/// Share of the memory left after the weights that a step may take; steps of long prompts that take
/// more are shortened.
const LONG_CHUNK_SHARE: f64 = 0.125;
/// The same where steps copy experts to the device: longer steps copy them less often.
const STREAMED_CHUNK_SHARE: f64 = 0.8;
/// Tokens of a step of a long prompt that a placement leaves room for where steps copy experts.
const STREAMED_CHUNK: usize = 2048;
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

/// Returns the memory of the main device available for allocation, in bytes.
fn available(device: &dyn Device, settings: &Settings) -> u64 {
    let free = device.available().unwrap_or(u64::MAX / 2);
    settings
        .placement
        .memory
        .map_or(free, |most| free.min(most))
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
        (device, placement): (&dyn Device, &Placement),
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
            missing_weight_bytes(file, model, &probe, (loaded, placement)),
            available(device, &settings),
        )?;
        let footprint = Footprint::new(model, &probe, &settings, placement, MIN_ARENA_SHARE);
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
        (is_usual, share): (bool, f64),
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
            && footprint.step_bytes() as f64 > left as f64 * share
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

/// What is compiled for one device.
struct CompiledUnit {
    jit: Jit,
    layouts: Layouts,
    /// Layouts of weights that steps copy from host memory.
    streamed: Layouts,
    /// Bytes of the arena for intermediates: the maximum over all compiled steps.
    arena: usize,
}

/// A model compiled for its devices. Its kernels fix the weight layouts, and hence which weights of
/// another engine can be reused.
pub struct CompiledModel<'a> {
    file: &'a Gguf,
    model: Box<dyn Model>,
    /// By device; the first is the main device's.
    units: Vec<CompiledUnit>,
    functions: Functions,
    splitter: Splitter,
    placement: PlacementChoice,
    sizes: Sizes,
    /// Candidate sets that decode steps of one sequence sample from, for the
    /// graphs captured at load.
    choices: Vec<CandidateSet>,
    footprint: Footprint,
    limit: StepLimit,
    /// Functions that the first token does not need; compiled in the background if not yet ready.
    rest: Vec<Arc<Function>>,
}

/// Plans of a model's steps, before their functions are compiled.
struct Planning {
    functions: Functions,
    splitter: Splitter,
    plans: Vec<Plan>,
    chosen: Vec<Arc<Function>>,
}

impl Planning {
    /// Plans the steps of all graphs for these devices.
    fn new(
        model: &dyn Model,
        sizes: &Sizes,
        choice: &PlacementChoice,
        jits: &[Jit],
        choices: &[CandidateSet],
    ) -> Result<Planning, Error> {
        let mut functions = Functions::new();
        let chosen = &choice.chosen.placement;
        let mut splitter = Splitter::new(chosen.clone(), choice.stream_from);
        let plan = |graph: GraphKey| {
            splitter.split(graph.tokens, &mut functions, &mut |device, functions| {
                let options = plan_options(graph, sizes.cache, jits[device].target());
                model.plan(&options, functions)
            })
        };
        let plans = sizes
            .planned_graphs()
            .map(plan)
            .collect::<Result<_, Error>>()?;
        let choice = |among: &CandidateSet| functions.share(among.function(model.vocabulary(), 1));
        let chosen = choices.iter().map(choice).collect();
        Ok(Planning {
            functions,
            splitter,
            plans,
            chosen,
        })
    }
    /// Returns the plans of the calls on one device.
    fn on_device(&self, device: usize) -> Vec<Plan> {
        self.plans.iter().map(|p| p.on_device(device)).collect()
    }
    /// Returns the functions on one device.
    fn functions_on(&self, device: usize) -> Vec<Arc<Function>> {
        let plans = self.on_device(device);
        let of_plans = plans
            .iter()
            .flat_map(|p| p.functions().into_iter().cloned());
        let chosen = self.chosen.iter().filter(|_| device == 0).cloned();
        of_plans.chain(chosen).collect()
    }
}

impl<'a> CompiledModel<'a> {
    /// Compiles a model for a device that may already hold weights of the same file
    /// (`loaded`), and for others of `settings.placement` if it does not fit there.
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
        // A placement is chosen before intermediates are known: try again with less for weights.
        let tries = RESERVES.iter().enumerate();
        for (number, reserve) in tries {
            let choice = choose(file, model.as_ref(), &settings, &opened, *reserve)?;
            let is_last = number + 1 == RESERVES.len() || choice.runner_up.is_none();
            let settings = settings.clone();
            match CompiledModel::placed(file, &opened, settings, loaded, choice, progress) {
                Err(Error::Weights { .. } | Error::Context { .. }) if !is_last => {}
                result => return result,
            }
        }
        unreachable!("the last try returns")
    }
    fn placed(
        file: &'a Gguf,
        opened: &Opened,
        settings: Settings,
        loaded: &Weights,
        choice: PlacementChoice,
        progress: &dyn Fn(Progress),
    ) -> Result<CompiledModel<'a>, Error> {
        let model = arch::load(file.metadata(), file)?;
        let placement = &choice.chosen.placement;
        let mut jits = vec![Jit::new(opened.clone())];
        if !placement.is_whole() {
            jits.extend(choice.others.iter().cloned().map(Jit::new));
        }
        let device = jits[0].device().clone();
        let asked = settings.long;
        let again = |settings| {
            let choice = choice.clone();
            CompiledModel::placed(file, opened, settings, loaded, choice, progress)
        };
        let at = (&*device, placement);
        let sizes = Sizes::choose(file, model.as_ref(), settings, loaded, at)?;
        let settings = &sizes.settings;
        let choices = candidate_sets(&*device);
        let planning = Planning::new(model.as_ref(), &sizes, &choice, &jits, &choices)?;
        let (mut units, mut planned) = (Vec::new(), Vec::new());
        for (number, mut jit) in jits.into_iter().enumerate() {
            let own = jit.plan(&planning.functions_on(number), &|done, total| {
                progress(Progress::Planning(done, total))
            });
            let arena = own.iter().map(|f| f.compiled.arena).max();
            let arena = arena.unwrap_or(0).max(MIN_ARENA_SHARE);
            planned.extend(own);
            let plans = planning.on_device(number);
            let layouts = match (
                load::common_layouts(&mut jit, &plans),
                settings.decode_rows(),
            ) {
                (Ok(layouts), _) => layouts,
                // Alternatives of two attentions that share a weight are decided one after the
                // other, so neither may have the common layout yet. Compile again without mixed
                // steps.
                (Err(_), Some(_)) => return again(settings.without_mixed(asked)),
                (Err(_), None) => load::layouts(&mut jit, &plans)?,
            };
            let streamed = |name: &String| number == 0 && placement.is_streamable(name);
            let (streamed, layouts) = layouts.into_iter().partition(|of| streamed(&of.0));
            units.push(CompiledUnit {
                jit,
                layouts,
                streamed,
                arena,
            });
        }
        // Check again, now that all allocations are known.
        let main = &units[0];
        let probe = probe(settings);
        let footprint = Footprint::new(model.as_ref(), &probe, settings, placement, main.arena);
        let slots = ExpertStream::slot_bytes(file, &main.streamed, placement);
        let missing = load::missing(file, &main.layouts, loaded) + slots;
        let left = memory_beside_weights(file, missing, available(&*device, settings))?;
        let is_usual = asked.is_none_or(StepLimits::is_usual);
        let share = match choice.stream_from {
            Some(_) => STREAMED_CHUNK_SHARE,
            None => LONG_CHUNK_SHARE,
        };
        let long = (is_usual, share);
        if let Some(smaller) = sizes.smaller(&footprint, model.context(), left, long)? {
            return again(smaller);
        }
        check_others(file, model.as_ref(), &units, placement, sizes.cache)?;
        let graphs = sizes.graphs();
        let limit = sizes.step_limit(&graphs, &planning.plans, &planned, &*device);
        // Only now, as other sizes have other kernels.
        let own = planning.on_device(0);
        let [mut first, rest] = sizes.first_functions(&graphs, &own, &*device);
        first.extend(planning.chosen.iter().cloned());
        for (number, unit) in units.iter_mut().enumerate() {
            let others = planning.functions_on(number);
            let wanted = if number == 0 { &first } else { &others };
            unit.jit.prepare(wanted, &|done, total| {
                progress(Progress::Compiling(done, total))
            })?;
        }
        Ok(CompiledModel {
            rest,
            file,
            model,
            units,
            functions: planning.functions,
            splitter: planning.splitter,
            placement: choice,
            sizes,
            choices,
            footprint,
            limit,
        })
    }

    /// Returns where the model's parts are.
    pub fn placement(&self) -> &PlacementChoice {
        &self.placement
    }

    /// Returns where the model's parts would be, without compiling it.
    ///
    /// # Errors
    /// When the model is malformed, or another device is needed and cannot be opened.
    pub fn planned_placement(
        file: &Gguf,
        settings: &Settings,
        opened: &Opened,
    ) -> Result<PlacementChoice, Error> {
        let model = arch::load(file.metadata(), file)?;
        choose(file, model.as_ref(), settings, opened, RESERVES[0])
    }

    /// Returns the bytes that loading allocates on the main device: missing weights, KV cache and
    /// activations.
    pub fn memory(&self, loaded: &Weights) -> u64 {
        self.missing(loaded)
            + self
                .footprint
                .with_pools(self.sizes.context, self.sizes.cache.pools)
    }

    /// Returns the bytes of weights that loading must allocate on the main device, without those
    /// already in `loaded`.
    pub fn missing(&self, loaded: &Weights) -> u64 {
        load::missing(self.file, &self.units[0].layouts, loaded)
    }

    /// Loads the weights and captures the graphs.
    ///
    /// Weights in `loaded`, from an engine of the same file on the same device, are reused
    /// if this model's kernels read the same layout. The others are released before loading starts,
    /// unless that engine or a clone still holds them.
    ///
    /// # Errors
    /// When memory is short, or the device fails.
    pub fn load(mut self, loaded: Weights, progress: &dyn Fn(Progress)) -> Result<Engine, Error> {
        let mut loaded = vec![loaded];
        loaded.resize_with(self.units.len(), Weights::default);
        let mut on = Vec::new();
        for (number, (unit, loaded)) in self.units.iter_mut().zip(loaded).enumerate() {
            let weights = load::weights(self.file, &mut unit.jit, &unit.layouts, loaded, progress)?;
            let device = unit.jit.device().clone();
            let model = self.model.as_ref();
            on.push(device_buffers(
                &*device,
                model,
                weights,
                &self.sizes,
                number == 0,
            )?);
        }
        let main = &mut self.units[0];
        let placement = &self.placement.chosen.placement;
        let stream = ExpertStream::load(
            self.file,
            &mut main.jit,
            &main.streamed,
            placement,
            progress,
        )?;
        main.jit.prepare_in_background(&self.rest);
        let devices: Vec<_> = self.units.iter().map(|u| u.jit.device().clone()).collect();
        let mut graphs = self.sizes.graphs();
        graphs.retain(|graph| self.sizes.is_first(graph, &*devices[0]));
        let home = |layer: usize| devices[placement.layer(layer).layer].clone();
        let cache = KvCache::new(&home, self.model.as_ref(), self.sizes.cache)?;
        let units = self
            .units
            .into_iter()
            .map(|u| GraphUnit::new(u.jit, u.arena));
        let units = units.collect::<Result<_, Error>>()?;
        let mut engine = Engine {
            on,
            cache,
            graphs: Graphs::new(units, self.functions, self.splitter),
            placement: self.placement,
            stream,
            model: self.model,
            settings: self.sizes.settings,
            context: self.sizes.context,
            in_flight: VecDeque::with_capacity(IN_FLIGHT),
            candidates: None,
            limit: self.limit,
            depths: self.sizes.depths,
        };
        // Capture the graphs that every sequence needs: decode steps and prefill chunks. Those that
        // are compiled in the background are captured at their first step.
        for graph in graphs {
            let keys: Vec<_> = match graph.tokens {
                1 => self
                    .choices
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

/// Shares of the main device's memory that are kept for intermediates, which only compiling
/// determines, while a placement is chosen; tried in this order.
const RESERVES: &[f64] = &[0.05, 0.15, 0.3, 0.5];
/// Context that a placement leaves room for, in tokens, if none is given.
const PLACED_CONTEXT: usize = 8192;

/// Chooses where the parts of a model are; `reserve` is the share of memory for intermediates.
fn choose(
    file: &Gguf,
    model: &dyn Model,
    settings: &Settings,
    opened: &Opened,
    reserve: f64,
) -> Result<PlacementChoice, Error> {
    let available = available(&*opened.device, settings);
    let limits = StepLimits::new(settings, model.context(), model, &opened.target);
    let settings = &Settings {
        chunk: limits.chunk,
        long: Some(limits.long.min(STREAMED_CHUNK)),
        ..settings.clone()
    };
    let probe = probe(settings);
    let whole = Placement::default();
    let context = settings.context.unwrap_or(PLACED_CONTEXT);
    let context = context.min(model.context());
    let footprint = Footprint::new(model, &probe, settings, &whole, MIN_ARENA_SHARE);
    let plan = model.plan(&probe, &mut Functions::new());
    let globals = plan.weights().into_iter().filter(|n| !n.contains("blk."));
    let globals: u64 = globals
        .filter_map(|n| file.tensor(n))
        .map(|t| t.bytes)
        .sum();
    let kept = footprint.bytes(context) + globals + (available as f64 * reserve) as u64;
    let budget = available.saturating_sub(kept);
    let placement = &settings.placement;
    Ok(placement.choose(file, model, &plan, opened, budget)?)
}

/// Checks that the devices besides the main one have room for their weights and caches.
fn check_others(
    file: &Gguf,
    model: &dyn Model,
    units: &[CompiledUnit],
    placement: &Placement,
    cache: CacheShape,
) -> Result<(), Error> {
    for (number, unit) in units.iter().enumerate().skip(1) {
        let weights = load::missing(file, &unit.layouts, &Weights::default());
        let caches = model.cache_tensors(cache.cache_type);
        let own = caches.iter().enumerate();
        let own = own.filter(|(layer, _)| placement.layer(*layer).layer == number);
        let rows = own.flat_map(|(_, planes)| planes);
        let cached: usize = rows.map(|p| p.bytes(cache.tensor_rows(p))).sum();
        let need = weights + (cached + unit.arena) as u64;
        let free = unit.jit.device().available().unwrap_or(u64::MAX / 2);
        memory_beside_weights(file, need, free)?;
    }
    Ok(())
}

/// Allocates what an engine has on one device; only the main one has logits.
fn device_buffers(
    device: &dyn Device,
    model: &dyn Model,
    weights: Weights,
    sizes: &Sizes,
    is_main: bool,
) -> Result<DeviceBuffers, Error> {
    let Sizes {
        settings,
        context,
        cache,
        limits,
        ..
    } = sizes;
    let tokens = limits.long + settings.decode_rows().unwrap_or(0);
    let logits = if is_main {
        limits.chunk.max(settings.parallel)
    } else {
        1
    };
    let blocks = cache.rows / Options::PAGE;
    let inputs = || {
        let sizes = [settings.parallel, tokens];
        StepInputs::new(device, cache.pools, blocks, sizes, model.choices())
    };
    let rows = [tokens, logits, cache.rows];
    Ok(DeviceBuffers {
        weights,
        inputs: [inputs()?, inputs()?],
        activations: Activations::new(device, model, rows, *context, settings.cache)?,
        cuts: CutBuffers::default(),
        state_copy: None,
    })
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
    /// Estimates an engine of this file on a device with this memory.
    ///
    /// # Errors
    /// The errors of [`CompiledModel::new`] that occur before compiling: the model is malformed
    /// or does not fit.
    pub fn new(file: &Gguf, settings: &Settings, available: u64) -> Result<MemoryEstimate, Error> {
        MemoryEstimate::placed(file, settings, available, &Placement::default())
    }
    /// Estimates an engine of this file on this main device, and other devices if it needs them.
    ///
    /// # Errors
    /// As for [`MemoryEstimate::new`], and when another device cannot be opened.
    pub fn on_device(
        file: &Gguf,
        settings: &Settings,
        opened: &Opened,
    ) -> Result<MemoryEstimate, Error> {
        let model = arch::load(file.metadata(), file)?;
        let choice = choose(file, model.as_ref(), settings, opened, RESERVES[0])?;
        let available = available(&*opened.device, settings);
        MemoryEstimate::placed(file, settings, available, &choice.chosen.placement)
    }
    fn placed(
        file: &Gguf,
        settings: &Settings,
        available: u64,
        placement: &Placement,
    ) -> Result<MemoryEstimate, Error> {
        let model = arch::load(file.metadata(), file)?;
        let chunk = settings.chunk.clamp(1, model.context());
        let settings = &Settings {
            chunk,
            long: settings.long.or(Some(chunk)),
            ..settings.clone()
        };
        let probe = probe(settings);
        let none = Weights::default();
        let weights = missing_weight_bytes(file, model.as_ref(), &probe, (&none, placement));
        let left = memory_beside_weights(file, weights, available)?;
        let footprint =
            Footprint::new(model.as_ref(), &probe, settings, placement, MIN_ARENA_SHARE);
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
            placement,
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

/// Returns the bytes of the main device's weights in the file that are missing from `loaded`.
fn missing_weight_bytes(
    file: &Gguf,
    model: &dyn Model,
    probe: &Options,
    (loaded, placement): (&Weights, &Placement),
) -> u64 {
    let plan = model.plan(probe, &mut Functions::new());
    let absent = plan
        .weights()
        .into_iter()
        .filter(|n| loaded.get(n).is_none() && placement.weight(n) == 0);
    absent.filter_map(|n| file.tensor(n)).map(|t| t.bytes).sum()
}
