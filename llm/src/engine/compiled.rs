//! Between a file and an engine: everything compiled, no weights yet.

use super::class::{Class, Settings, cache_rows, classes, depths, plan_options};
use super::error::{Error, Progress};
use super::executor::Engine;
use crate::arch::{self, Functions, Logits, Model, Options, Plan, TokenClass};
use crate::gguf::Gguf;
use crate::load::{self, Layouts, Weights};
use crate::sampling::{self, Choice, NUMBERS};
use crate::synth;
use gristmill_backend::Opened;
use gristmill_runtime::Memory;
use gristmill_tensor::jit::Jit;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Share of the available memory that a context may take when none is asked for.
const CONTEXT_SHARE: f64 = 0.25;
/// Context when none is asked for: no more than this, though the model may allow it.
const CONTEXT_DEFAULT: usize = 32768;
/// What messages count in.
const MB: u64 = 1_000_000;
/// A shorter context is of no use to anybody who does not ask for one.
const CONTEXT_LEAST: usize = 512;

/// The bytes that an engine allocates beside the weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Footprint {
    /// Of each row of the cache: its states in all layers, its rotations, a token and a random number.
    pub row: u64,
    /// Whatever the context: states of a fixed size, logits, hidden rows, tokens, what a request's numbers take, intermediates.
    pub besides: u64,
    /// Most tokens of one step: the cache has rows for one step more.
    pub chunk: usize,
}

impl Footprint {
    /// With intermediates of so many bytes.
    fn new(model: &dyn Model, probe: &Options, chunk: usize, arena: usize) -> Footprint {
        let row =
            model.cache_row_bytes(probe.cache) + rope_row(model, probe.rows) + size_of::<u32>() + size_of::<u32>();
        let hidden = 2 * chunk * model.width() * size_of::<f32>() + layer_input_bytes(model, chunk);
        let logits = chunk * model.vocabulary() * size_of::<f32>();
        let request = NUMBERS * size_of::<f32>() + chunk * size_of::<u32>();
        Footprint { row: row as u64, besides: (model.state_bytes() + hidden + logits + request + arena) as u64, chunk }
    }
    /// For a context of so many tokens.
    pub fn bytes(&self, context: usize) -> u64 {
        self.besides.saturating_add(self.row.saturating_mul(cache_rows(context, self.chunk) as u64))
    }
    /// The longest context, of at most `most` tokens, that takes no more bytes than there are; 0 if none does.
    pub fn longest(&self, most: usize, available: u64) -> usize {
        // The first that does not fit lies behind `fits`, at most at `ends`.
        let (mut fits, mut ends) = (0, most + 1);
        while ends - fits > 1 {
            let middle = fits.midpoint(ends);
            if self.bytes(middle) <= available { fits = middle } else { ends = middle }
        }
        fits
    }
}

/// Bytes of what a model makes of a step's tokens for all its layers: rows of all layers, and after the last what a row lacks that is read from the part of the last
/// layer on.
fn layer_input_bytes(model: &dyn Model, chunk: usize) -> usize {
    (chunk + 1) * model.layers() * model.layer_input() * size_of::<f32>()
}

/// A step that every model has, to ask it what it keeps.
fn probe(settings: &Settings) -> Options {
    let (logits, tile) = (Logits::Last, Options::TILE);
    Options { tokens: TokenClass::One, rows: 64, depth: 64, cache: settings.cache, logits, tile }
}

/// Bytes of one row of the tables of rotations, for a context of so many tokens.
fn rope_row(model: &dyn Model, context: usize) -> usize {
    model.rope_tables(context).iter().map(|t| t.row_bytes()).sum()
}

/// A model compiled for a device. Its kernels say how weights lie in memory, and so which of another engine's they can read.
pub struct Compiled<'a> {
    file: &'a Gguf,
    model: Box<dyn Model>,
    jit: Jit,
    functions: Functions,
    settings: Settings,
    context: usize,
    rows: usize,
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
        let mut functions = Functions::new();
        let chunk = settings.chunk.clamp(1, model.context());
        let settings = Settings { chunk, ..settings };
        // The context first, without intermediates, which only compiling tells: it is cheap to refuse.
        let probe = probe(&settings);
        let weights = absent(file, model.as_ref(), &probe, there);
        let available = device.available().unwrap_or(u64::MAX / 2);
        let beside = |weights: u64| beside(file, weights, available);
        let footprint = Footprint::new(model.as_ref(), &probe, chunk, LEAST_ARENA);
        let context = choose_context(&settings, model.context(), &footprint, beside(weights)?)?;
        let rows = cache_rows(context, chunk);
        let depths = depths(&settings, rows, device.target());
        let plan =
            |class: Class| model.plan(&plan_options(class, rows, settings.cache, &opened.target), &mut functions);
        let plans: Vec<Plan> = classes(chunk, &depths).into_iter().map(plan).collect();
        let choices: &[Choice] = if device.overlaps() { &[Choice::Greedy, Choice::Best] } else { &[Choice::Greedy] };
        let choice = |&choice: &Choice| functions.share(sampling::function(choice, model.vocabulary(), rows));
        let planned = plans.iter().flat_map(|p| p.functions().into_iter().cloned());
        let all: Vec<_> = planned.chain(choices.iter().map(choice)).collect();
        let ready = jit.prepare(&all, &|done, total| progress(Progress::Compiling(done, total)))?;
        let arena = Jit::arena(&ready).max(LEAST_ARENA);
        let layouts = load::layouts(&mut jit, &plans)?;
        let mut partials: FxHashMap<usize, usize> = FxHashMap::default();
        for (class, plan) in classes(chunk, &depths).iter().zip(&plans) {
            let of_plan = ready.iter().filter(|r| plan.functions().iter().any(|&f| Arc::ptr_eq(f, &r.function)));
            let most = partials.entry(class.tokens).or_default();
            *most = of_plan.map(|r| r.compiled.partial).max().unwrap_or(0).max(*most);
        }
        // Once more, now that all is known that will be allocated.
        let footprint = Footprint::new(model.as_ref(), &probe, chunk, arena);
        let left = beside(load::missing(file, &layouts, there))?;
        let fitting = choose_context(&settings, model.context(), &footprint, left)?;
        if fitting < context {
            let settings = Settings { context: Some(fitting), ..settings };
            return Compiled::new(file, opened, settings, there, progress);
        }
        Ok(Compiled {
            file,
            model,
            jit,
            functions,
            settings,
            context,
            rows,
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
        self.missing(there) + self.footprint.bytes(self.context)
    }

    /// Bytes of weights that loading takes beside those that are there.
    pub fn missing(&self, there: &Weights) -> u64 {
        load::missing(self.file, &self.layouts, there)
    }

    /// Loads the weights. What is `there`, of an engine of the same file on the same device, is taken over where this one's kernels read it as
    /// it lies; the rest of it goes before anything is loaded, unless that engine, or a clone, still has it.
    pub fn load(self, there: Weights, progress: &dyn Fn(Progress)) -> Result<Engine, Error> {
        let Compiled {
            file,
            model,
            mut jit,
            functions,
            settings,
            context,
            rows,
            depths,
            choices,
            layouts,
            arena,
            partials,
            ..
        } = self;
        let weights = load::weights(file, &mut jit, &layouts, there, progress)?;
        let (device, chunk) = (jit.device().clone(), settings.chunk);
        let classes = classes(chunk, &depths);
        let planes = model.planes(settings.cache);
        let states = planes
            .iter()
            .map(|planes| planes.iter().map(|p| device.alloc(p.bytes(rows), Memory::State)).collect())
            .collect::<Result<Vec<_>, _>>()?;
        let hidden_bytes = chunk * model.width() * 4;
        let hidden = [device.alloc(hidden_bytes, Memory::State)?, device.alloc(hidden_bytes, Memory::State)?];
        let tokens = device.alloc(chunk * 4, Memory::Scratch)?;
        let layer_input = match layer_input_bytes(model.as_ref(), chunk) {
            _ if model.layer_input() == 0 => None,
            bytes => Some(device.alloc(bytes, Memory::State)?),
        };
        let rope_tables = model.rope_tables(context);
        let rope = rope_tables
            .iter()
            .map(|t| device.alloc(rows * t.row_bytes(), Memory::State))
            .collect::<Result<Vec<_>, _>>()?;
        let logits = device.alloc(chunk * model.vocabulary() * 4, Memory::State)?;
        let mut engine = Engine {
            arena: device.alloc(arena, Memory::State)?,
            model,
            jit,
            settings,
            context,
            rows,
            depths: depths.clone(),
            weights,
            planes,
            states,
            hidden,
            tokens,
            layer_input,
            rope_tables,
            rope,
            logits,
            functions,
            captured: FxHashMap::default(),
            decoders: FxHashMap::default(),
            decoding: None,
            chosen: device.alloc(rows * 4, Memory::State)?,
            random: device.alloc(rows * 4, Memory::State)?,
            request: device.alloc(NUMBERS * 4, Memory::Scratch)?,
            logits_host: Vec::new(),
            rope_filled: 0,
            partials,
        };
        // What every session needs, in one batch: a token, and chunks of a prompt.
        engine.prepare(&classes, progress)?;
        for depth in depths {
            choices.iter().try_for_each(|&choice| engine.prepare_choice(choice, depth, progress))?;
        }
        Ok(engine)
    }
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
        let probe = probe(settings);
        let weights = absent(file, model.as_ref(), &probe, &Weights::default());
        let left = beside(file, weights, available)?;
        let footprint = Footprint::new(model.as_ref(), &probe, chunk, LEAST_ARENA);
        let context = choose_context(settings, model.context(), &footprint, left)?;
        Ok(Forecast { context, weights, beside: footprint.bytes(context) })
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

/// Bytes of the file's weights of which none of that name is there.
fn absent(file: &Gguf, model: &dyn Model, probe: &Options, there: &Weights) -> u64 {
    let plan = model.plan(probe, &mut Functions::new());
    let absent = plan.weights().into_iter().filter(|n| there.get(n).is_none());
    absent.filter_map(|n| file.tensor(n)).map(|t| t.bytes).sum()
}

/// The context asked for, or what the model allows within a sensible share of memory. `footprint` are its bytes beside the weights.
fn choose_context(settings: &Settings, most: usize, footprint: &Footprint, available: u64) -> Result<usize, Error> {
    let fits = || footprint.longest(most, available);
    let refused = |context, fits| {
        let need = footprint.bytes(context) / MB;
        Err(Error::Context { context, need, available: available / MB, fits })
    };
    match settings.context {
        Some(0) => Err(Error::BadContext(0, most)),
        Some(context) if context > most => Err(Error::BadContext(context, most)),
        Some(context) if footprint.bytes(context) > available => refused(context, fits()),
        Some(context) => Ok(context),
        None => {
            let least = CONTEXT_LEAST.min(most);
            if footprint.bytes(least) > available {
                return refused(least, 0);
            }
            let share = (available as f64 * CONTEXT_SHARE) as u64 / footprint.row.max(1);
            let share = (share as usize).clamp(CONTEXT_LEAST, CONTEXT_DEFAULT);
            // A power of two: kernels know the cache's size, and those compiled when a little less memory was free still fit.
            Ok((1 << share.min(fits()).ilog2()).min(most))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_fits_or_says_what_would() {
        // 1 KiB a row and 1 MiB besides.
        let footprint = Footprint { row: 1 << 10, besides: 1 << 20, chunk: 512 };
        let choose = |context, available| {
            let settings = Settings { context, ..Settings::default() };
            choose_context(&settings, 100_000, &footprint, available)
        };
        // 9,216 tokens and a chunk are 10,240 rows or fewer, allocated by 2,048.
        assert_eq!(choose(Some(9000), 11 << 20).unwrap(), 9000);
        let error = choose(Some(20_000), 11 << 20).unwrap_err();
        // 20,512 rows are allocated as 22,528.
        let Error::Context { context: 20_000, need: 24, available: 11, fits } = error else { panic!("{error}") };
        assert_eq!(cache_rows(fits, 512), 10_240, "{fits}");
        assert!(cache_rows(fits + 1, 512) > 10_240, "{fits}");
        assert!(error.hint().unwrap().contains(&format!("--ctx {fits}")));
        assert!(choose(Some(1), 0).unwrap_err().hint().unwrap().contains("smaller"));
        assert!(matches!(choose(Some(100_001), 1 << 40), Err(Error::BadContext(..))));
        // A quarter of 60 MiB is 15,360 tokens; a little less memory chooses the same.
        assert_eq!(choose(None, 60 << 20).unwrap(), 8192);
        assert_eq!(choose(None, 50 << 20).unwrap(), 8192);
        assert_eq!(choose(None, 1 << 40).unwrap(), CONTEXT_DEFAULT);
        // A quarter of 3 MiB is 768 tokens, and one byte less would not hold the least context.
        assert_eq!(choose(None, 3 << 20).unwrap(), 512);
        assert!(matches!(choose(None, (3 << 20) - 1), Err(Error::Context { fits: 0, .. })));
        assert!(matches!(choose(None, 0), Err(Error::Context { .. })));
        // Where most of the memory goes into what no context changes, what fits decides: 4,096 rows of 3,584 tokens and a chunk.
        let heavy = Footprint { besides: 40 << 20, ..footprint };
        assert_eq!(choose_context(&Settings::default(), 100_000, &heavy, 44 << 20).unwrap(), 2048);
    }
}
