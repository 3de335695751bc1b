//! Compilation of a model for a device, before its weights are loaded.

use super::activations::Activations;
use super::device_buffers::{CutBuffers, DeviceBuffers};
use super::executor::Engine;
use super::expert_cache::ExpertCache;
use super::expert_stream::ExpertStream;
use super::footprint::{Footprint, choose_context};
use super::graph_key::{Settings, StepLimits};
use super::graphs::{GraphUnit, Graphs};
use super::host_experts::HostExperts;
use super::inputs::{IN_FLIGHT, StepInputs};
use super::kv_cache::KvCache;
use super::planning::{CompiledUnit, Planning, RESERVES, STREAMED_CHUNK, check_others, choose};
use super::sizes::{
    MIN_ARENA_SHARE, Sizes, available, memory_beside_weights, missing_weight_bytes, probe,
};
use super::step_limit::StepLimit;
use crate::arch::{self, Functions, Model, Options};
use crate::error::{Error, Progress};
use crate::gguf::Gguf;
use crate::load::{self, Weights};
use crate::placement::{Placement, PlacementChoice, Priced, Splitter};
use crate::sampling::CandidateSet;
use gristmill_backend::Opened;
use gristmill_runtime::Device;
use gristmill_tensor::jit::Jit;
use gristmill_uop::function::Function;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Returns the candidate sets that decode steps of one sequence sample from at load.
fn candidate_sets(device: &dyn Device, model: &dyn Model) -> Vec<CandidateSet> {
    if model.is_encoder() {
        Vec::new()
    } else if device.overlaps() {
        vec![CandidateSet::Top1, CandidateSet::SmallTopK]
    } else {
        vec![CandidateSet::Top1]
    }
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
            let with = (loaded, choice, !is_last);
            match CompiledModel::placed(file, &opened, settings, with, progress) {
                Ok(None) => {}
                Err(Error::Weights { .. } | Error::Context { .. }) if !is_last => {}
                Ok(Some(model)) => return Ok(model),
                Err(error) => return Err(error),
            }
        }
        unreachable!("the last try returns")
    }
    /// Compiles a model for a placement. `None` if it leaves no room for long steps, which copy
    /// experts to the device, and another placement `may` follow.
    fn placed(
        file: &'a Gguf,
        opened: &Opened,
        settings: Settings,
        (loaded, choice, may): (&Weights, PlacementChoice, bool),
        progress: &dyn Fn(Progress),
    ) -> Result<Option<CompiledModel<'a>>, Error> {
        let placement = &choice.chosen.placement;
        let (model, settings) = load_model(file, settings, placement)?;
        let mut jits = vec![Jit::new(opened.clone())];
        if !placement.is_whole() {
            jits.extend(choice.others.iter().cloned().map(Jit::new));
        }
        let device = jits[0].device().clone();
        let is_pipelined = choice.is_pipelined(&*device);
        let asked = settings.long;
        let again = |settings| {
            let with = (loaded, choice.clone(), may);
            CompiledModel::placed(file, opened, settings, with, progress)
        };
        let gpus = jits.iter().take(choice.budgets.len());
        let gpus: Vec<&dyn Device> = gpus.map(|jit| &**jit.device()).collect();
        let at = (&gpus[..], placement);
        let sizes = Sizes::choose(file, model.as_ref(), settings, loaded, at)?;
        let settings = &sizes.settings;
        let choices = candidate_sets(&*device, model.as_ref());
        let planning = Planning::new(model.as_ref(), &sizes, &choice, &jits, &choices)?;
        let Some(mut made) = planning.units(jits, &sizes, placement, progress)? else {
            return again(settings.without_mixed(asked));
        };
        // Check again, now that all allocations are known.
        let with = (&choice, loaded);
        let rooms = made.rooms(file, model.as_ref(), &sizes, with)?;
        let is_usual = asked.is_none_or(StepLimits::is_usual);
        let long = (is_usual, is_pipelined || choice.stream_from.is_some());
        for room in &rooms {
            if let Some(smaller) = sizes.smaller(room, model.context(), long)? {
                let wanted = sizes.limits.long.min(STREAMED_CHUNK);
                let is_short = smaller.long.is_some_and(|long| long < wanted);
                match may && is_short {
                    true => return Ok(None),
                    false => return again(smaller),
                }
            }
        }
        let footprint = rooms[0].footprint;
        check_others(file, model.as_ref(), &made.units, placement, sizes.cache)?;
        let graphs = sizes.graphs();
        let limit = sizes.step_limit(&graphs, &planning.plans, &made.planned, &*device);
        // Only now, as other sizes have other kernels.
        let own = planning.on_device(0);
        let [mut first, rest] = sizes.first_functions(&graphs, &own, &*device);
        first.extend(planning.chosen.iter().cloned());
        made.prepare(&planning, &first, progress)?;
        Ok(Some(CompiledModel {
            rest,
            file,
            model,
            units: made.units,
            functions: planning.functions,
            splitter: planning.splitter,
            placement: choice,
            sizes,
            choices,
            footprint,
            limit,
        }))
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
        let placement = self.placement.chosen.placement.clone();
        for (number, (unit, loaded)) in self.units.iter_mut().zip(loaded).enumerate() {
            let weights = load::weights(self.file, &mut unit.jit, &unit.layouts, loaded, progress)?;
            let device = unit.jit.device().clone();
            let model = self.model.as_ref();
            on.push(device_buffers(
                &*device,
                model,
                weights,
                &self.sizes,
                (number == 0, placement.has_logits(number)),
            )?);
        }
        let (stream, experts) = self.load_experts(&mut on)?;
        self.units[0].jit.prepare_in_background(&self.rest);
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
            expert_cache: Arc::new(Mutex::new(experts)),
            model: self.model,
            settings: self.sizes.settings,
            context: self.sizes.context,
            in_flight: VecDeque::with_capacity(IN_FLIGHT),
            candidates: None,
            chunk_tokens: 0,
            limit: self.limit,
            depths: self.sizes.depths,
        };
        // Capture the graphs that every sequence needs: decode steps and prefill chunks. Those that
        // are compiled in the background are captured at their first step.
        for graph in graphs {
            let keys: Vec<_> = match graph.tokens {
                1 if graph.draft.is_some() => vec![engine.plain(graph, Some(CandidateSet::Top1))],
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
    /// Prepares the experts that steps copy to the main device, and those that it holds besides its
    /// weights. `on` are the buffers of all devices, the main one first.
    fn load_experts(
        &mut self,
        on: &mut [DeviceBuffers],
    ) -> Result<(ExpertStream, ExpertCache), Error> {
        let Priced {
            placement, slots, ..
        } = &self.placement.chosen;
        let devices = self.units.iter().map(|unit| unit.jit.device().clone());
        let of_devices = devices.zip(on.iter().map(|of| of.weights.clone()));
        let mut host = HostExperts::new(self.file, of_devices.collect(), placement.clone());
        let main = &mut self.units[0];
        let (jit, streamed) = (&mut main.jit, &main.streamed);
        let stream = ExpertStream::new(self.file, jit, streamed, placement, &mut host)?;
        let mut experts = ExpertCache::new(self.file, jit.device(), &self.placement);
        if *slots > 0 {
            let (from, weights) = ((*slots, &mut host), &mut on[0].weights);
            experts.allocate(self.file, jit, &main.cached, from, weights)?;
        }
        Ok((stream, experts))
    }
}

/// Loads a model, with its draft block if that is wanted, there is one, and all that it reads is on
/// the main device; the settings say whether it has it.
fn load_model(
    file: &Gguf,
    settings: Settings,
    placement: &Placement,
) -> Result<(Box<dyn Model>, Settings), Error> {
    let model = arch::load(file.metadata(), file)?;
    let is_main = |layer: usize| placement.layer(layer).layer == 0;
    let reads_main = model.draft_layers().iter().all(|&layer| is_main(layer));
    let has_ends = is_main(model.layers().saturating_sub(1)) && placement.outer().next().is_none();
    let is_near = reads_main && has_ends;
    let draft_block = settings.draft_block && is_near && model.has_draft_block();
    let settings = Settings {
        draft_block,
        ..settings
    };
    match draft_block {
        true => Ok((arch::with_draft_block(model), settings)),
        false => Ok((model, settings)),
    }
}

/// Allocates what an engine has on one device, which may be the main one and may compute logits.
fn device_buffers(
    device: &dyn Device,
    model: &dyn Model,
    weights: Weights,
    sizes: &Sizes,
    (is_main, has_logits): (bool, bool),
) -> Result<DeviceBuffers, Error> {
    let Sizes {
        settings,
        context,
        cache,
        limits,
        ..
    } = sizes;
    let others = settings.decode_rows().unwrap_or(0);
    let tokens = (limits.long + others).max(settings.rows());
    let logits = if has_logits && !model.is_encoder() {
        limits.chunk.max(settings.rows())
    } else {
        1
    };
    let blocks = cache.rows / Options::PAGE;
    let inputs = || {
        let sizes = [settings.rows(), tokens];
        let draft_rows = is_main && settings.draft_block;
        StepInputs::new(
            device,
            cache.pools,
            blocks,
            sizes,
            (model.choices(), draft_rows),
        )
    };
    let rows = [tokens, logits, cache.rows];
    let drafted = match is_main && settings.draft_block {
        true => settings.rows() * model.width() * size_of::<f32>(),
        false => 0,
    };
    Ok(DeviceBuffers {
        weights,
        inputs: [inputs()?, inputs()?],
        activations: Activations::new(device, model, rows, *context, settings.cache)?
            .with_drafted(device, drafted)?,
        cuts: CutBuffers::default(),
        experts: None,
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
        let at = (placement, 0);
        let weights = missing_weight_bytes(file, model.as_ref(), &probe, &none, at);
        let left = memory_beside_weights(file, weights, available)?;
        let footprint = Footprint::new(model.as_ref(), &probe, settings, at, MIN_ARENA_SHARE);
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
            at,
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
