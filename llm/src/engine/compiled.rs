//! Between a file and an engine: everything compiled, no weights yet.

use super::class::{CacheShape, Class, Most, Settings, batch_class, cache_rows, classes, depths, plan_options};
use super::error::{Error, Progress};
use super::executor::{ATTENTION_BYTES, Engine};
use super::footprint::{Footprint, choose_context, layer_input_bytes};
use super::pool::Pool;
use super::seen::Seen;
use crate::arch::{self, Functions, Logits, Model, Options, Plan, Plane, TokenClass};
use crate::gguf::Gguf;
use crate::load::{self, Layouts, Weights};
use crate::sampling::{self, Choice, NUMBERS};
use crate::synth;
use gristmill_backend::Opened;
use gristmill_runtime::{Buffer, Device, Memory};
use gristmill_tensor::jit::{Jit, Ready};
use gristmill_uop::machine::MachineKind;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What messages count in.
const MB: u64 = 1_000_000;
/// The part of the memory that steps may take beside weights and cache: where those of long prompts take more, they are shorter.
const LONG_SHARE: u64 = 8;
/// The part of a GPU's free memory that partial results of attention may take in one step.
const ATTENTION_SHARE: usize = 16;

/// A step that every model has, to ask it what it keeps.
fn probe(settings: &Settings) -> Options {
    let (logits, tile, tokens) = (Logits::Last, Options::TILE, TokenClass::One);
    Options { tokens, rows: 64, pages: None, chunk: 64, depth: 64, cache: settings.cache, logits, tile }
}

/// Bytes of a device's memory that may be taken.
fn available(device: &dyn Device) -> u64 {
    device.available().unwrap_or(u64::MAX / 2)
}

/// What steps and the cache are made for: chosen without intermediates, which only compiling tells, as it is cheap to refuse.
struct Sizes {
    settings: Settings,
    most: Most,
    context: usize,
    cache: CacheShape,
    depths: Vec<usize>,
}

impl Sizes {
    /// As the settings ask, on a device on which there may be weights of the same file already.
    fn choose(
        file: &Gguf,
        model: &dyn Model,
        settings: Settings,
        there: &Weights,
        device: &dyn Device,
    ) -> Result<Sizes, Error> {
        let most = Most::of(&settings, model.context(), model, device.target());
        let parallel = settings.parallel.map(|n| n.clamp(1, most.chunk));
        // Pieces of a prompt are no longer than a chunk where others wait for them.
        let most = if parallel.is_some() { Most::chunk(most.chunk) } else { most };
        let settings = Settings { chunk: most.chunk, long: Some(most.long), parallel, ..settings };
        let probe = probe(&settings);
        let left = beside(file, absent(file, model, &probe, there), available(device))?;
        let footprint = Footprint::new(model, &probe, &settings, LEAST_ARENA);
        let context = choose_context(&settings, model.context(), &footprint, left)?;
        let parallel = parallel.map(|n| footprint.sequences(n, left));
        let pages = parallel.map(|n| footprint.pools(context, n, left));
        let (settings, rows) = (Settings { parallel, ..settings }.over(pages), cache_rows(context, most.long));
        let cache = CacheShape { rows, pages, chunk: most.long, scalar: settings.cache };
        let depths = depths(&settings, rows, device.target());
        Ok(Sizes { settings, most, context, cache, depths })
    }
    /// Settings for less, where what will be allocated does not leave room for these in so many bytes beside the weights; steps of long prompts may be shorter where their length `is_usual`.
    fn smaller(
        &self,
        footprint: &Footprint,
        longest: usize,
        left: u64,
        is_usual: bool,
    ) -> Result<Option<Settings>, Error> {
        let Sizes { settings, most, context, cache, .. } = self;
        if is_usual && most.long > most.chunk && footprint.of_steps() > left / LONG_SHARE {
            return Ok(Some(Settings { long: Some(most.shorter()), ..settings.clone() }));
        }
        let fitting = choose_context(settings, longest, footprint, left)?;
        let crowded = cache.pages.is_some() && footprint.with_pool(*context, cache.pages) > left;
        // Intermediates take what was meant for pages: fewer sequences, one after the other at last.
        let parallel = settings.parallel.map(|n| if crowded { n / 2 } else { n }).filter(|&n| n > 0);
        let less = Settings { context: Some(fitting), parallel, ..settings.clone() };
        Ok((fitting < *context || crowded).then_some(less))
    }
}

/// Numbers of a partial result of attention for a token and a chunk of the cache, by the most tokens of a class, in functions that are `ready`.
fn partials(classes: &[Class], plans: &[Plan], ready: &[Arc<Ready>]) -> FxHashMap<usize, usize> {
    let mut partials: FxHashMap<usize, usize> = FxHashMap::default();
    for (class, plan) in classes.iter().zip(plans) {
        let of_plan = ready.iter().filter(|r| plan.functions().iter().any(|&f| Arc::ptr_eq(f, &r.function)));
        let most = partials.entry(class.tokens).or_default();
        *most = of_plan.map(|r| r.compiled.partial).max().unwrap_or(0).max(*most);
    }
    partials
}

/// A model compiled for a device. Its kernels say how weights lie in memory, and so which of another engine's they can read.
pub struct Compiled<'a> {
    file: &'a Gguf,
    model: Box<dyn Model>,
    jit: Jit,
    functions: Functions,
    settings: Settings,
    context: usize,
    cache: CacheShape,
    depths: Vec<usize>,
    choices: &'static [Choice],
    layouts: Layouts,
    footprint: Footprint,
    /// Bytes of intermediates that every step so far takes at most.
    arena: usize,
    /// Numbers of a partial result of attention for a token and a chunk of the cache, by the most tokens of a class.
    partials: FxHashMap<usize, usize>,
}

impl<'a> Compiled<'a> {
    /// Compiles a model for a device on which there may be weights of the same file already.
    pub fn new(
        file: &'a Gguf,
        opened: Opened,
        settings: Settings,
        there: &Weights,
        progress: &dyn Fn(Progress),
    ) -> Result<Compiled<'a>, Error> {
        let model = arch::load(file.metadata(), file)?;
        let mut jit = Jit::new(opened.clone());
        let device = jit.device().clone();
        let asked = settings.long;
        let again = |settings| Compiled::new(file, opened.clone(), settings, there, progress);
        let sizes = Sizes::choose(file, model.as_ref(), settings, there, &*device)?;
        let Sizes { settings, most, cache, depths, .. } = &sizes;
        let mut functions = Functions::new();
        let plan = |class: Class| model.plan(&plan_options(class, *cache, &opened.target), &mut functions);
        let batches = settings.parallel.into_iter().map(|most| batch_class(1, most, cache.rows));
        let classes = classes(*most, depths, settings.others());
        let plans: Vec<Plan> = classes.iter().copied().chain(batches).map(plan).collect();
        let choices: &[Choice] = if device.overlaps() { &[Choice::Greedy, Choice::Best] } else { &[Choice::Greedy] };
        let choice = |&choice: &Choice| functions.share(sampling::function(choice, model.vocabulary(), cache.rows));
        let planned = plans.iter().flat_map(|p| p.functions().into_iter().cloned());
        let all: Vec<_> = planned.chain(choices.iter().map(choice)).collect();
        let ready = jit.prepare(&all, &|done, total| progress(Progress::Compiling(done, total)))?;
        let arena = Jit::arena(&ready).max(LEAST_ARENA);
        let layouts = match load::common_layouts(&mut jit, &plans)? {
            Ok(layouts) => layouts,
            // Alternatives of two attentions that share a weight are decided on one after the other: neither may lie as it has to before the other does.
            Err(_) if settings.others().is_some() => {
                return again(Settings { long: asked, mixed: false, ..settings.clone() });
            }
            Err(_) => load::layouts(&mut jit, &plans)?,
        };
        // Once more, now that all is known that will be allocated.
        let footprint = Footprint::new(model.as_ref(), &probe(settings), settings, arena);
        let left = beside(file, load::missing(file, &layouts, there), available(&*device))?;
        let is_usual = asked.is_none_or(Most::is_usual);
        if let Some(smaller) = sizes.smaller(&footprint, model.context(), left, is_usual)? {
            return again(smaller);
        }
        let partials = partials(&classes, &plans, &ready);
        let Sizes { settings, context, cache, depths, .. } = sizes;
        Ok(Compiled {
            file,
            model,
            jit,
            functions,
            settings,
            context,
            cache,
            depths,
            choices,
            layouts,
            footprint,
            arena,
            partials,
        })
    }

    /// Bytes that loading allocates, beside weights that are there: weights, the context's state, activations.
    pub fn memory(&self, there: &Weights) -> u64 {
        self.missing(there) + self.footprint.with_pool(self.context, self.cache.pages)
    }

    /// Bytes of weights that loading takes beside those that are there.
    pub fn missing(&self, there: &Weights) -> u64 {
        load::missing(self.file, &self.layouts, there)
    }

    /// Loads the weights. What is `there`, of an engine of the same file on the same device, is taken over where this one's kernels read it as
    /// it lies; the rest of it goes before anything is loaded, unless that engine, or a clone, still has it.
    pub fn load(self, there: Weights, progress: &dyn Fn(Progress)) -> Result<Engine, Error> {
        let Compiled { file, model, mut jit, settings, context, cache, depths, .. } = self;
        let rows = cache.rows;
        let weights = load::weights(file, &mut jit, &self.layouts, there, progress)?;
        let most = Most::of(&settings, model.context(), model.as_ref(), jit.target());
        let (device, Most { chunk, long }) = (jit.device().clone(), most);
        let classes = classes(most, &depths, settings.others());
        let planes = model.planes(settings.cache);
        let state = |bytes: usize| device.alloc(bytes, Memory::State);
        let seen = Seen::new(&cache, planes.iter().flatten());
        // Tokens of other sequences are behind those of a piece.
        let tokens_of_step = long + settings.others().unwrap_or(0);
        let hidden_bytes = tokens_of_step * model.width() * 4;
        let layer_input = layer_input_bytes(model.as_ref(), tokens_of_step);
        let rope_tables = model.rope_tables(context);
        let rows_of_logits = chunk.max(settings.others().map_or(0, |n| n + 1));
        let mut engine = Engine {
            arena: state(self.arena)?,
            pool: None,
            depths,
            weights,
            states: states(&*device, &planes, &cache)?,
            planes,
            hidden: [state(hidden_bytes)?, state(hidden_bytes)?],
            tokens: device.alloc(tokens_of_step * 4, Memory::Scratch)?,
            layer_input: (layer_input > 0).then(|| state(layer_input)).transpose()?,
            rope: rope_tables.iter().map(|t| state(rows * t.row_bytes())).collect::<Result<_, _>>()?,
            rope_tables,
            logits: state(rows_of_logits * model.vocabulary() * 4)?,
            attention_bytes: attention_bytes(&*device),
            model,
            jit,
            settings,
            context,
            cache,
            functions: self.functions,
            captured: FxHashMap::default(),
            decoders: FxHashMap::default(),
            decoding: None,
            chosen: device.alloc(rows * 4, Memory::Readback)?,
            random: state(rows * 4)?,
            request: device.alloc(NUMBERS * 4, Memory::Scratch)?,
            logits_host: Vec::new(),
            rope_filled: 0,
            seen,
            partials: self.partials,
        };
        if let (Some(pages), Some(most)) = (cache.pages, engine.settings.parallel) {
            engine.pool = Some(Pool::new(&device, rows, pages, most, chunk)?);
        }
        // What every session needs, in one batch: a token, and chunks of a prompt.
        engine.prepare(&classes, progress)?;
        for depth in engine.depths.clone() {
            self.choices.iter().try_for_each(|&choice| engine.prepare_choice(choice, depth, progress))?;
        }
        Ok(engine)
    }
}

/// Where each layer's planes are kept, empty.
fn states(device: &dyn Device, planes: &[Vec<Plane>], cache: &CacheShape) -> Result<Vec<Vec<Buffer>>, Error> {
    let plane = |plane: &Plane| device.alloc(plane.bytes(cache.plane_rows(plane)), Memory::State);
    let of_layer = |planes: &Vec<Plane>| planes.iter().map(plane).collect::<Result<_, _>>();
    Ok(planes.iter().map(of_layer).collect::<Result<_, _>>()?)
}

/// What an engine will be, as far as the file's head and the device tell: nothing is compiled and no weight is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forecast {
    /// Tokens of context.
    pub context: usize,
    /// Bytes of the weights as they lie in the file; on a device they may take a little more.
    pub weights: u64,
    /// Bytes of the cache and of what steps need beside it, but for intermediates, which compiling tells.
    pub beside: u64,
}

impl Forecast {
    /// That of this file on a device with so many bytes available.
    ///
    /// # Errors
    /// Those of [`Compiled::new`] that need no compiler: a model that is none, or does not fit.
    pub fn of(file: &Gguf, settings: &Settings, available: u64) -> Result<Forecast, Error> {
        let model = arch::load(file.metadata(), file)?;
        let chunk = settings.chunk.clamp(1, model.context());
        let settings = &Settings { chunk, long: settings.long.or(Some(chunk)), ..settings.clone() };
        let probe = probe(settings);
        let weights = absent(file, model.as_ref(), &probe, &Weights::default());
        let left = beside(file, weights, available)?;
        let footprint = Footprint::new(model.as_ref(), &probe, settings, LEAST_ARENA);
        let context = choose_context(settings, model.context(), &footprint, left)?;
        let parallel = settings.parallel.map(|n| footprint.sequences(n, left));
        let pages = parallel.map(|n| footprint.pools(context, n, left));
        let settings = Settings { parallel, ..settings.clone() };
        let footprint = Footprint::new(model.as_ref(), &probe, &settings.over(pages), LEAST_ARENA);
        Ok(Forecast { context, weights, beside: footprint.with_pool(context, pages) })
    }
}

impl Engine {
    /// Loads a model onto a device and compiles what it needs. `progress` is called from this thread.
    pub fn load(file: &Gguf, opened: Opened, settings: Settings, progress: &dyn Fn(Progress)) -> Result<Engine, Error> {
        let none = Weights::default();
        Compiled::new(file, opened, settings, &none, progress)?.load(none, progress)
    }
}

/// Bytes that weights of so many bytes leave of those that are available.
fn beside(file: &Gguf, weights: u64, available: u64) -> Result<u64, Error> {
    available.checked_sub(weights).ok_or_else(|| {
        let fitting = synth::fitting(file.metadata(), available);
        Error::Weights { need: weights / MB, available: available / MB, fitting }
    })
}

/// An arena has at least so many bytes, though no step has intermediates: devices need not allocate nothing.
const LEAST_ARENA: usize = 64;

/// Bytes that partial results of attention may take in one step.
fn attention_bytes(device: &dyn Device) -> usize {
    match device.target().machine.kind {
        MachineKind::Gpu => ATTENTION_BYTES.max(device.available().unwrap_or(0) as usize / ATTENTION_SHARE),
        MachineKind::Cpu => ATTENTION_BYTES,
    }
}

/// Bytes of the file's weights of which none of that name is there.
fn absent(file: &Gguf, model: &dyn Model, probe: &Options, there: &Weights) -> u64 {
    let plan = model.plan(probe, &mut Functions::new());
    let absent = plan.weights().into_iter().filter(|n| there.get(n).is_none());
    absent.filter_map(|n| file.tensor(n)).map(|t| t.bytes).sum()
}
