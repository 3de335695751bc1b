//! Plans of a model's steps for its devices, and the placement that they follow.

use super::expert_cache::ExpertCache;
use super::expert_stream::ExpertStream;
use super::footprint::Footprint;
use super::graph_key::{CacheShape, GraphKey, Settings, StepLimits, batch_graph, plan_options};
use super::host_experts::HostExperts;
use super::sizes::{GpuRoom, MIN_ARENA_SHARE, Sizes, available, memory_beside_weights, probe};
use crate::arch::{Functions, Model, Options, Plan};
use crate::error::{Error, Progress};
use crate::gguf::Gguf;
use crate::load::{self, Layouts, Weights};
use crate::placement::{LayerPlace, Placement, PlacementChoice, PlanFor, Splitter, is_cached};
use crate::sampling::CandidateSet;
use gristmill_backend::Opened;
use gristmill_runtime::Device;
use gristmill_tensor::jit::{Jit, Planned};
use gristmill_uop::function::Function;
use std::sync::Arc;

/// Tokens of a step of a long prompt that a placement leaves room for where steps copy experts.
pub(super) const STREAMED_CHUNK: usize = 2048;

/// What is compiled for one device.
pub(super) struct CompiledUnit {
    pub(super) jit: Jit,
    pub(super) layouts: Layouts,
    /// Layouts of weights that steps copy from host memory.
    pub(super) streamed: Layouts,
    /// Layouts of weights with slots of cached experts.
    pub(super) cached: Layouts,
    /// Bytes of the arena for intermediates: the maximum over all compiled steps.
    pub(super) arena: usize,
}

/// Compilers of all devices, with the functions that they planned.
pub(super) struct PlannedUnits {
    pub(super) units: Vec<CompiledUnit>,
    pub(super) planned: Vec<Arc<Planned>>,
}

impl PlannedUnits {
    /// Returns the room on each GPU, the main device first.
    pub(super) fn rooms(
        &self,
        file: &Gguf,
        model: &dyn Model,
        sizes: &Sizes,
        (choice, loaded): (&PlacementChoice, &Weights),
    ) -> Result<Vec<GpuRoom>, Error> {
        let (placement, settings) = (&choice.chosen.placement, &sizes.settings);
        let none = Weights::default();
        let room = |(number, unit): (usize, &CompiledUnit)| {
            let at = (placement, number);
            let footprint = Footprint::new(model, &probe(settings), settings, at, unit.arena);
            let loaded = [loaded, &none][number.min(1)];
            let mut missing = load::missing(file, &unit.layouts, loaded);
            if number == 0 {
                missing += ExpertStream::slot_bytes(file, &unit.streamed, placement)
                    + ExpertCache::slot_bytes(file, &unit.cached, choice.chosen.slots)
                    + HostExperts::stage_bytes(
                        file,
                        unit.streamed.keys().chain(unit.cached.keys()),
                    );
            }
            let available = available(&**unit.jit.device(), settings);
            let left = memory_beside_weights(file, missing, available)?;
            Ok(GpuRoom { footprint, left })
        };
        let gpus = choice.budgets.len();
        let units = self.units.iter().enumerate();
        units.take(gpus).map(room).collect()
    }
    /// Compiles the functions of all devices; `first` are those of the main device that the first
    /// token needs.
    pub(super) fn prepare(
        &mut self,
        planning: &Planning,
        first: &[Arc<Function>],
        progress: &dyn Fn(Progress),
    ) -> Result<(), Error> {
        for (number, unit) in self.units.iter_mut().enumerate() {
            let others = planning.functions_on(number);
            let wanted = if number == 0 { first } else { &others };
            unit.jit.prepare(wanted, &|done, total| {
                progress(Progress::Compiling(done, total))
            })?;
        }
        Ok(())
    }
}

/// Plans of a model's steps, before their functions are compiled.
pub(super) struct Planning {
    pub(super) functions: Functions,
    pub(super) splitter: Splitter,
    pub(super) plans: Vec<Plan>,
    pub(super) chosen: Vec<Arc<Function>>,
}

impl Planning {
    /// Plans the steps of all graphs for these devices.
    pub(super) fn new(
        model: &dyn Model,
        sizes: &Sizes,
        choice: &PlacementChoice,
        jits: &[Jit],
        choices: &[CandidateSet],
    ) -> Result<Planning, Error> {
        let mut functions = Functions::new();
        let chosen = &choice.chosen.placement;
        let mut splitter = Splitter::new(chosen.clone(), choice.stream_from, choice.chosen.slots);
        let plan = |graph: GraphKey| {
            splitter.split(graph.tokens, &mut functions, &mut |of, functions| {
                let options = plan_options(graph, sizes.cache, jits[of.device].target());
                model.plan(&with_cached(options, graph, of, &sizes.settings), functions)
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
    /// Plans the functions of every device; `None` if steps of different kinds read a weight in
    /// different layouts, and steps without mixed batches might not.
    pub(super) fn units(
        &self,
        jits: Vec<Jit>,
        sizes: &Sizes,
        placement: &Placement,
        progress: &dyn Fn(Progress),
    ) -> Result<Option<PlannedUnits>, Error> {
        let (mut units, mut planned) = (Vec::new(), Vec::new());
        for (number, mut jit) in jits.into_iter().enumerate() {
            let own = jit.plan(&self.functions_on(number), &|done, total| {
                progress(Progress::Planning(done, total))
            });
            let arena = own.iter().map(|f| f.compiled.arena).max();
            let arena = arena.unwrap_or(0).max(MIN_ARENA_SHARE);
            planned.extend(own);
            let plans = self.on_device(number);
            let layouts = match load::common_layouts(&mut jit, &plans) {
                Ok(layouts) => layouts,
                // Alternatives of two attentions that share a weight are decided one after the
                // other, so neither may have the common layout yet.
                Err(_) if sizes.settings.decode_rows().is_some() => return Ok(None),
                Err(_) => load::layouts(&mut jit, &plans)?,
            };
            let (cached, layouts): (Layouts, Layouts) =
                layouts.into_iter().partition(|of| is_cached(&of.0));
            let streamed = |name: &String| number == 0 && placement.is_streamable(name);
            let (streamed, layouts) = layouts.into_iter().partition(|of| streamed(&of.0));
            units.push(CompiledUnit {
                jit,
                layouts,
                streamed,
                cached,
                arena,
            });
        }
        Ok(Some(PlannedUnits { units, planned }))
    }
    /// Returns the plans of the calls on one device.
    pub(super) fn on_device(&self, device: usize) -> Vec<Plan> {
        self.plans.iter().map(|p| p.on_device(device)).collect()
    }
    /// Returns the functions on one device.
    pub(super) fn functions_on(&self, device: usize) -> Vec<Arc<Function>> {
        let plans = self.on_device(device);
        let of_plans = plans
            .iter()
            .flat_map(|p| p.functions().into_iter().cloned());
        let chosen = self.chosen.iter().filter(|_| device == 0).cloned();
        of_plans.chain(chosen).collect()
    }
}

/// Returns the options of a graph's plan with the cached experts that it asks for. The graph of the
/// largest batch has none: batch-invariant steps run it, and do not depend on what is cached.
pub(super) fn with_cached(
    options: Options,
    graph: GraphKey,
    of: PlanFor,
    settings: &Settings,
) -> Options {
    let most = settings.rows();
    let is_largest = graph.batch && graph.tokens == batch_graph(most, most, graph.depth).tokens;
    Options {
        cached: of.cached.filter(|_| !is_largest),
        ..options
    }
}

/// Shares of the main device's memory that are kept for intermediates, which only compiling
/// determines, while a placement is chosen; tried in this order.
pub(super) const RESERVES: &[f64] = &[0.05, 0.1, 0.15, 0.3, 0.5];
/// Context that a placement leaves room for, in tokens, if none is given.
pub(super) const PLACED_CONTEXT: usize = 8192;

/// Chooses where the parts of a model are; `reserve` is the share of memory for intermediates.
pub(super) fn choose(
    file: &Gguf,
    model: &dyn Model,
    settings: &Settings,
    opened: &Opened,
    reserve: f64,
) -> Result<PlacementChoice, Error> {
    let limits = StepLimits::new(settings, model.context(), model, &opened.target);
    let settings = &Settings {
        chunk: limits.chunk,
        long: Some(limits.long.min(STREAMED_CHUNK)),
        ..settings.clone()
    };
    let probe = probe(settings);
    let context = settings.context.unwrap_or(PLACED_CONTEXT);
    let context = context.min(model.context());
    let kept = |placement: &Placement| {
        let of = Footprint::new(model, &probe, settings, (placement, 0), MIN_ARENA_SHARE);
        of.bytes(context)
    };
    let elsewhere = LayerPlace {
        layer: 1,
        experts: 1,
    };
    let without_cache = kept(&Placement::new(vec![elsewhere; model.layers()]));
    let caches = kept(&Placement::default()).saturating_sub(without_cache);
    let plan = model.plan(&probe, &mut Functions::new());
    let globals = plan.weights().into_iter().filter(|n| !n.contains("blk."));
    let globals: u64 = globals
        .filter_map(|n| file.tensor(n))
        .map(|t| t.bytes)
        .sum();
    // A GPU's share of the cache is that of its layers.
    let budget = |device: &dyn Device, gpus: usize| {
        let available = available(device, settings);
        let of_main = if device.id() == opened.device.id() {
            globals
        } else {
            0
        };
        let reserved = (available as f64 * reserve) as u64;
        let kept = without_cache + caches / gpus as u64 + of_main + reserved;
        available.saturating_sub(kept)
    };
    let placement = &settings.placement;
    Ok(placement.choose(file, model, &plan, opened, &budget)?)
}

/// Checks that the devices besides the main one have room for their weights and caches.
pub(super) fn check_others(
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
