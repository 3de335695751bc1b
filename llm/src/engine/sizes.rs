//! Sizes of steps and of the KV cache, chosen for the memory of the main device.

use super::footprint::{Footprint, choose_context};
use super::graph_key::{
    CacheShape, GraphKey, Settings, StepLimits, batch_graph, cache_rows, depths, draft_graphs,
    draft_options, mixed_graphs, sequence_graphs, text_graphs,
};
use super::step_limit::StepLimit;
use crate::arch::{DraftOptions, Functions, Logits, Model, Options, Plan, Pools, StepKind};
use crate::error::Error;
use crate::gguf::Gguf;
use crate::load::Weights;
use crate::placement::Placement;
use crate::synth;
use gristmill_runtime::Device;
use gristmill_tensor::jit::Planned;
use gristmill_uop::function::Function;
use gristmill_uop::machine::MachineKind;
use std::sync::Arc;

/// Unit of memory sizes in error messages, in bytes.
pub(super) const MB: u64 = 1_000_000;
/// Share of the memory left after the weights that a step may take; steps of long prompts that take
/// more are shortened.
pub(super) const LONG_CHUNK_SHARE: f64 = 0.125;
/// The same where steps copy experts to the device, or layers are divided among GPUs: short steps
/// cost most there.
pub(super) const PLACED_CHUNK_SHARE: f64 = 0.8;
/// Partial results of attention may take at most 1/16 of a GPU's free memory in one step.
pub(super) const ATTENTION_SHARE: usize = 16;
/// Minimum bytes for partial results of attention in one step; longer prompts run in smaller steps.
pub(super) const ATTENTION_BYTES: usize = 256 << 20;

/// Returns the options of a decode step, used to query a model's cache sizes.
pub(super) fn probe(settings: &Settings) -> Options {
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
        cached: None,
        draft: None,
    }
}

/// Returns the memory of the main device available for allocation, in bytes.
pub(super) fn available(device: &dyn Device, settings: &Settings) -> u64 {
    let free = device.available().unwrap_or(u64::MAX / 2);
    settings
        .placement
        .memory
        .map_or(free, |most| free.min(most))
}

/// What an engine allocates on a GPU besides its weights, and the bytes that are left for that.
pub(super) struct GpuRoom {
    pub(super) footprint: Footprint,
    pub(super) left: u64,
}

/// Returns the context, the sequences and the pools for which there is room on every GPU.
fn fitting(
    settings: &Settings,
    longest: usize,
    rooms: &[GpuRoom],
) -> Result<(usize, usize, Pools), Error> {
    let context = |of: &GpuRoom| choose_context(settings, longest, &of.footprint, of.left);
    let contexts = rooms.iter().map(context).collect::<Result<Vec<_>, _>>()?;
    let context = contexts.into_iter().min().unwrap_or(longest);
    let sequences = rooms.iter().map(|of| of.footprint.sequences(of.left));
    let parallel = sequences.min().unwrap_or(1);
    let pools = rooms
        .iter()
        .map(|of| of.footprint.pools(context, parallel, of.left));
    let pools = pools.min_by_key(|of| of.pages);
    Ok((context, parallel, pools.unwrap_or(Pools::from_pages(1))))
}

/// Sizes of steps and of the KV cache. They are chosen without the size of intermediates, which is
/// known only after compilation, so that a model that does not fit is refused early.
pub(super) struct Sizes {
    pub(super) settings: Settings,
    pub(super) limits: StepLimits,
    pub(super) context: usize,
    pub(super) cache: CacheShape,
    pub(super) depths: Vec<usize>,
    /// The model is a text encoder.
    pub(super) encodes: bool,
    /// The draft block has a KV cache of its own, which parts of prompts fill.
    pub(super) fills_drafts: bool,
}

impl Sizes {
    /// Chooses sizes for a device that may already hold weights of the same file (`loaded`), and
    /// for other GPUs with layers of the placement.
    pub(super) fn choose(
        file: &Gguf,
        model: &dyn Model,
        settings: Settings,
        loaded: &Weights,
        (gpus, placement): (&[&dyn Device], &Placement),
    ) -> Result<Sizes, Error> {
        let device = gpus[0];
        let limits = StepLimits::new(&settings, model.context(), model, device.target());
        let encodes = model.is_encoder();
        let most = if encodes { 1 } else { limits.chunk };
        let parallel = settings.parallel.clamp(1, most);
        let settings = Settings {
            chunk: limits.chunk,
            long: Some(limits.long),
            parallel,
            mixed: settings.mixed && !encodes,
            drafts: if encodes { 0 } else { settings.drafts },
            ..settings
        };
        let probe = probe(&settings);
        let none = Weights::default();
        let room = |(number, device): (usize, &&dyn Device)| {
            let (at, loaded) = ((placement, number), [loaded, &none][number.min(1)]);
            let missing = missing_weight_bytes(file, model, &probe, loaded, at);
            let left = memory_beside_weights(file, missing, available(*device, &settings))?;
            let footprint = Footprint::new(model, &probe, &settings, at, MIN_ARENA_SHARE);
            Ok(GpuRoom { footprint, left })
        };
        let rooms = gpus.iter().enumerate().map(room);
        let rooms = rooms.collect::<Result<Vec<_>, Error>>()?;
        let (context, parallel, pools) = fitting(&settings, model.context(), &rooms)?;
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
            encodes,
            fills_drafts: model.draft_layers().is_empty(),
        })
    }
    /// Returns smaller settings if the allocations do not fit into the room on a GPU. Steps of long
    /// prompts may be shortened only if their length `is_usual`.
    pub(super) fn smaller(
        &self,
        GpuRoom { footprint, left }: &GpuRoom,
        longest: usize,
        (is_usual, is_placed): (bool, bool),
    ) -> Result<Option<Settings>, Error> {
        let Sizes {
            settings,
            limits,
            context,
            cache,
            ..
        } = self;
        let left = *left;
        let share = match is_placed {
            true => PLACED_CHUNK_SHARE,
            false => LONG_CHUNK_SHARE,
        };
        if is_usual
            && !self.encodes
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
    pub(super) fn step_limit(
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
    pub(super) fn graphs(&self) -> Vec<GraphKey> {
        if self.encodes {
            return text_graphs(self.limits, self.cache.rows);
        }
        let others = self.settings.decode_rows();
        let mixed = others.map(|others| mixed_graphs(self.limits.chunk, self.cache.rows, others));
        let drafts = self.draft_options();
        let drafts = drafts.map(|sources| draft_graphs(self.limits, &self.depths, sources));
        let is_run = |graph: &GraphKey| self.fills_drafts || graph.logits != Logits::None;
        sequence_graphs(self.limits, &self.depths)
            .into_iter()
            .chain(mixed.into_iter().flatten())
            .chain(drafts.into_iter().flatten().filter(is_run))
            .collect()
    }
    /// Returns the hidden rows that steps of the draft block read, of the model and of the block;
    /// `None` without one.
    pub(super) fn draft_options(&self) -> Option<[DraftOptions; 2]> {
        draft_options(&self.settings, self.limits)
    }
    /// Returns the graphs to plan: those to compile, and the smallest batched decode step, so that
    /// the weight layouts suit it too.
    pub(super) fn planned_graphs(&self) -> impl Iterator<Item = GraphKey> {
        let (most, rows) = (self.settings.rows(), self.cache.rows);
        let batch = || batch_graph(2, most, rows);
        let drafts = self.draft_options().into_iter().flatten();
        let drafts = drafts.map(move |draft| GraphKey {
            draft: Some(draft),
            ..batch_graph(2, most, rows)
        });
        let batches = std::iter::once(batch()).chain(drafts);
        let batches: Vec<GraphKey> = batches.filter(|_| most > 1).collect();
        self.graphs().into_iter().chain(batches)
    }
    /// Returns the length of the first prompt if the kernels that it does not need may be compiled
    /// in the background: the C compiler runs beside steps, a GPU's might not.
    pub(super) fn first_prompt(&self, device: &dyn Device) -> Option<usize> {
        let is_cpu = device.target().machine.kind == MachineKind::Cpu;
        self.settings.first_prompt.filter(|_| is_cpu)
    }
    /// Returns whether a graph must be compiled before the first token.
    pub(super) fn is_first(&self, graph: &GraphKey, device: &dyn Device) -> bool {
        let prompt = self.first_prompt(device);
        prompt.is_none_or(|prompt| graph.serves_prompt(prompt, self.limits))
    }
    /// Returns the functions of `plans` that the first token needs, and the others. Plans after
    /// those of `graphs` are of batched steps.
    pub(super) fn first_functions(
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

/// Returns the largest number of elements of a partial attention result among the plan's
/// functions in `ready`.
pub(super) fn partial(plan: &Plan, ready: &[Arc<Planned>]) -> usize {
    let of_plan = ready.iter().filter(|r| {
        plan.functions()
            .iter()
            .any(|&f| Arc::ptr_eq(f, &r.function))
    });
    of_plan.map(|r| r.compiled.partial).max().unwrap_or(0)
}

/// Returns the bytes left after `weights` bytes are taken from `available`.
pub(super) fn memory_beside_weights(
    file: &Gguf,
    weights: u64,
    available: u64,
) -> Result<u64, Error> {
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
pub(super) const MIN_ARENA_SHARE: usize = 64;

/// Returns the bytes that partial results of attention may take in one step.
pub(super) fn attention_bytes(device: &dyn Device) -> usize {
    match device.target().machine.kind {
        MachineKind::Gpu => {
            ATTENTION_BYTES.max(device.available().unwrap_or(0) as usize / ATTENTION_SHARE)
        }
        MachineKind::Cpu => ATTENTION_BYTES,
    }
}

/// Returns the bytes of a device's weights in the file that are missing from `loaded`.
pub(super) fn missing_weight_bytes(
    file: &Gguf,
    model: &dyn Model,
    probe: &Options,
    loaded: &Weights,
    (placement, device): (&Placement, usize),
) -> u64 {
    let plan = model.plan(probe, &mut Functions::new());
    let absent = plan
        .weights()
        .into_iter()
        .filter(|n| loaded.get(n).is_none() && placement.weight(n) == device);
    absent.filter_map(|n| file.tensor(n)).map(|t| t.bytes).sum()
}
