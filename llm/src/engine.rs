//! A model on a device: weights loaded, functions compiled, steps captured.
//!
//! Classes of step, by their number of tokens: one, a few (the end of a prompt, a short one), a chunk of up to [`Settings::chunk`]. All share
//! weights, states and tables.

mod compiled;
mod decode;

use crate::arch::{self, AttentionForm, Bind, Functions, Logits, Model, Options, Plan, TokenClass};
use crate::gguf::{self, Gguf};
pub use crate::load::Weights;
use crate::sampling::Choice;
use crate::traffic::{self, Traffic};
pub use compiled::Compiled;
use compiled::Footprint;
pub use decode::Draw;
use gristmill_backend::Opened;
use gristmill_runtime::{Buffer, Device, Memory, Replay, Span};
use gristmill_tensor::jit::{Call, Jit, Ready};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use rustc_hash::FxHashMap;
use std::sync::Arc;

mod rows;

/// How a model is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tokens of context; as many as the model allows within a share of memory unless said.
    pub context: Option<usize>,
    /// Type of the cache: f16, f32, or i8 for bytes with scales.
    pub cache: Scalar,
    /// Most tokens of one step.
    pub chunk: usize,
    /// Depths that have steps of one token of their own, before that of the whole cache; as the device is better for it unless said.
    pub depths: Option<Vec<usize>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { context: None, cache: Scalar::F16, chunk: 512, depths: None }
    }
}

/// What goes wrong between a file and its logits.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The model in it.
    #[error(transparent)]
    Model(#[from] arch::Error),
    /// The device.
    #[error(transparent)]
    Device(#[from] gristmill_runtime::Error),
    /// A context that does not fit.
    #[error("a context of {context} tokens needs {need} MiB for its cache, and {available} MiB are available")]
    Context {
        /// Tokens asked for.
        context: usize,
        /// MiB its cache needs.
        need: u64,
        /// MiB there are.
        available: u64,
        /// The longest context that would fit.
        fits: usize,
    },
    /// Weights that do not fit.
    #[error("the model's weights take {need} MiB, and {available} MiB of memory are available")]
    Weights {
        /// MiB of weights.
        need: u64,
        /// MiB there are.
        available: u64,
    },
    /// The context is full.
    #[error("the context of {0} tokens is full")]
    Full(usize),
    /// A token that the vocabulary does not have.
    #[error("token {token} is not one of the model's {vocabulary}")]
    Token {
        /// The id.
        token: u32,
        /// Number of ids.
        vocabulary: usize,
    },
    /// Nothing to compute.
    #[error("no tokens were given")]
    Empty,
    /// A token asked for while none is being generated.
    #[error("no generation is under way, or all its steps have been made")]
    NoGeneration,
    /// Logits that predict nothing.
    #[error("the logit of token {token} is {value}, at position {position}")]
    BadLogit {
        /// Of the token before the one that is predicted.
        position: usize,
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// A context of no use.
    #[error("a context of {0} tokens is not possible: the model takes 1 to {1}")]
    BadContext(usize, usize),
}

impl Error {
    /// Is the device lost? Then nothing that is asked of this engine, or of another on that device, will succeed again.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Device(e) if e.is_lost())
    }
    /// A way out, for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::File(e) => e.hint(),
            Error::Model(e) => e.hint(),
            Error::Device(e) => e.hint(),
            Error::Context { fits, .. } if *fits > 0 => {
                Some(format!("--ctx {fits} would fit; a cache of a narrower --kv takes less"))
            }
            Error::Context { .. } => Some("the model itself fills the memory: try a smaller one".into()),
            Error::Weights { .. } => {
                Some("try a smaller quantisation of it, a smaller model, or a machine with more memory".into())
            }
            Error::Full(_) => Some("start again, or give a larger --ctx".into()),
            Error::Token { vocabulary, .. } => Some(format!("ids go from 0 to {}", vocabulary - 1)),
            Error::Empty => Some("a prompt needs at least one token".into()),
            Error::NoGeneration => {
                Some("this is a bug in gristmill: please report it with the command that led here".into())
            }
            Error::BadLogit { .. } => Some(crate::sampling::GARBAGE.into()),
            Error::BadContext(_, most) => Some(format!("try --ctx {}, or leave it out", most.min(&4096))),
        }
    }
}

/// What is going on while a model is made ready.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress {
    /// Bytes of weights loaded, of how many.
    Loading(u64, u64),
    /// Kernels compiled, of how many.
    Compiling(usize, usize),
}

/// Share of the available memory that a context may take when none is asked for.
const CONTEXT_SHARE: f64 = 0.25;
/// Context when none is asked for: no more than this, though the model may allow it.
const CONTEXT_DEFAULT: usize = 32768;
/// A shorter context is of no use to anybody who does not ask for one.
const CONTEXT_LEAST: usize = 512;
/// Rows of the cache are a multiple of this.
const ROWS_STEP: usize = 2048;
/// Tokens of a step of a few: experts get so few rows each that small tiles pay.
const FEW: usize = 64;
/// Bytes that the partial results of attention in one step may take; longer prompts go in smaller steps.
const ATTENTION_BYTES: usize = 256 << 20;

/// Which class a step is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Steps {
    /// The smallest that takes its tokens: the fastest.
    Fitting,
    /// The largest.
    Chunks,
}

/// A class of step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Class {
    /// The most tokens it takes.
    pub tokens: usize,
    /// Which logits it computes.
    pub logits: Logits,
    /// Positions within its reach.
    pub depth: usize,
}

/// Depths of the steps of one token before that of the whole cache, on a GPU: how attention is divided depends on how far it may reach, so a
/// long context has steps of their own for its start.
const DEPTHS: [usize; 2] = [2048, 8192];

/// Depths of the steps of one token, for a cache of so many rows.
pub fn depths(settings: &Settings, rows: usize, target: &Target) -> Vec<usize> {
    let usual: &[usize] = if target.machine.kind == MachineKind::Gpu { &DEPTHS } else { &[] };
    let short = settings.depths.as_deref().unwrap_or(usual);
    short.iter().copied().filter(|&d| d < rows).chain([rows]).collect()
}

/// Values of the variables of a step.
type Variables = [(&'static str, i64); 2];

/// The classes that every session needs, with steps of at most `chunk` tokens and these depths, the last that of the cache: compiled in one batch when a model is loaded.
pub fn classes(chunk: usize, depths: &[usize]) -> Vec<Class> {
    let rows = *depths.last().expect("that of the cache");
    let one = depths.iter().map(|&depth| Class { tokens: 1, logits: Logits::Last, depth });
    let many = [(FEW.min(chunk), Logits::Last), (chunk, Logits::None), (chunk, Logits::Last)];
    let many = many.into_iter().filter(|c| c.0 > 1).map(|(tokens, logits)| Class { tokens, logits, depth: rows });
    let mut all: Vec<Class> = one.chain(many).collect();
    all.dedup();
    all
}

/// How the steps of a class are planned.
pub fn plan_options(class: Class, rows: usize, cache: Scalar) -> Options {
    let Class { tokens: max, logits, depth } = class;
    Options {
        tokens: if max > 1 { TokenClass::Chunk { max } } else { TokenClass::One },
        rows,
        depth,
        cache,
        attention: if max > FEW { AttentionForm::Values } else { AttentionForm::Absorbed },
        logits,
    }
}

/// Rows of every state for a context: in large steps, so that nearby contexts share their kernels; rows that are never touched take no
/// memory.
pub fn cache_rows(context: usize, chunk: usize) -> usize {
    Options::rows_for(context, chunk).next_multiple_of(ROWS_STEP)
}

struct Captured {
    replay: Box<dyn Replay>,
    /// The function and program of every launch, in order.
    launches: Vec<(Arc<Ready>, usize)>,
}

/// A model, ready to run.
pub struct Engine {
    model: Box<dyn Model>,
    jit: Jit,
    settings: Settings,
    context: usize,
    rows: usize,
    /// Depths of steps of one token, ascending; the last is all rows.
    depths: Vec<usize>,
    weights: Weights,
    /// Of each layer: its planes.
    states: Vec<Vec<Buffer>>,
    hidden: [Buffer; 2],
    tokens: Buffer,
    rope: Buffer,
    logits: Buffer,
    arena: Buffer,
    functions: Functions,
    captured: FxHashMap<Class, Captured>,
    /// Steps of one token that end with the choice of the next, by how deep they reach.
    decoders: FxHashMap<(Choice, usize), Captured>,
    decoding: Option<decode::Decoding>,
    /// Tokens chosen and random numbers, one each for a position; the numbers of the request.
    chosen: Buffer,
    random: Buffer,
    request: Buffer,
    logits_host: Vec<f32>,
    rope_filled: usize,
}

impl Engine {
    /// Loads a model onto a device and compiles what it needs. `progress` is called from this thread.
    pub fn load(file: &Gguf, opened: Opened, settings: Settings, progress: &dyn Fn(Progress)) -> Result<Engine, Error> {
        let none = Weights::default();
        Compiled::new(file, opened, settings, &none, progress)?.load(none, progress)
    }
    /// Its weights, for another engine of the same file on the same device; see [`Compiled::load`].
    pub fn shared_weights(&self) -> Weights {
        self.weights.clone()
    }
    /// The same; everything else of it goes.
    pub fn into_weights(self) -> Weights {
        self.weights
    }
    /// Tokens of context.
    pub fn context(&self) -> usize {
        self.context
    }
    /// The model.
    pub fn model(&self) -> &dyn Model {
        self.model.as_ref()
    }
    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.jit.device()
    }
    /// The weights on the device.
    pub fn weights(&self) -> impl Iterator<Item = &Buffer> {
        self.weights.buffers()
    }
    /// Bytes of weights on the device.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }
    /// Most tokens of one step.
    pub fn chunk(&self) -> usize {
        self.settings.chunk
    }
    /// Bytes of the cache that one token takes, in all layers.
    pub fn cache_bytes_per_token(&self) -> usize {
        self.model.state(&self.options(self.class(1, Logits::None, 0))).row_bytes() * self.model.layers()
    }
    /// Launches of one step at that position, if it has been taken: of one token with the choice of the next, the largest, or of a chunk with the logits
    /// after its last token.
    pub fn launches(&self, chunk: bool, position: usize) -> usize {
        let captured = match chunk {
            true => self.captured.get(&self.class(self.settings.chunk, Logits::Last, position)),
            false => self.decoders.get(&(Choice::Greedy, self.depth(position))),
        };
        captured.map_or(0, |c| c.launches.len())
    }
    /// What a step of so many tokens at that position must read.
    pub fn traffic(&mut self, tokens: usize, position: usize) -> Traffic {
        let plan = self.model.plan(&self.options(self.class(1, Logits::Last, position)), &mut self.functions);
        let bytes = |name: &str| self.weights.get(name).map_or(0, |b| b.len() as u64);
        let rows = position + tokens.saturating_sub(1) / 2 + 1;
        let cache = (rows * self.cache_bytes_per_token()) as f64;
        Traffic { weights: traffic::weights(&plan, tokens, &bytes), cache }
    }
    /// Fills the cache of every layer before `position` with numbers that mean nothing but take the memory and the time of
    /// real ones, so that the speed at a depth can be measured without running the tokens before it.
    pub fn pretend(&mut self, position: usize) -> Result<(), Error> {
        self.finish()?;
        let state = self.model.state(&self.options(self.class(1, Logits::None, 0)));
        // xorshift64: all of what a row stands for below 1/4, of either sign.
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let small = (seed >> 40) as f32 / (1u32 << 24) as f32;
            if seed & 1 == 0 { small } else { -small }
        };
        let most = if self.settings.cache.is_float() { 0.25 } else { 0.25 / 127.0 };
        for (i, plane) in state.planes.iter().enumerate() {
            let mut piece = Vec::with_capacity(1 << 20);
            while piece.len() < 1 << 20 {
                match plane.scalar {
                    Scalar::I8 => piece.push((next() * 127.0) as i8 as u8),
                    Scalar::F16 => piece.extend(half::f16::from_f32(next() * most).to_le_bytes()),
                    _ => piece.extend((next() * most).to_le_bytes()),
                }
            }
            let bytes = position.min(self.rows) * plane.row_bytes();
            for layer in &self.states {
                for at in (0..bytes).step_by(piece.len()) {
                    let n = piece.len().min(bytes - at);
                    self.jit.device().write(&layer[i], at, &piece[..n])?;
                }
            }
        }
        Ok(())
    }
    /// Distinct functions compiled.
    pub fn compiled(&self) -> usize {
        self.jit.compiled()
    }
    /// The class of a step of `n` tokens at that position.
    fn class(&self, n: usize, logits: Logits, position: usize) -> Class {
        let tokens = match n {
            1 => 1,
            _ if n <= FEW => FEW.min(self.settings.chunk),
            _ => self.settings.chunk,
        };
        Class { tokens, logits, depth: if tokens > 1 { self.rows } else { self.depth(position) } }
    }
    /// The depth of a step of one token at that position: the least that reaches it.
    fn depth(&self, position: usize) -> usize {
        self.depths.iter().copied().find(|&d| position < d).unwrap_or(self.rows)
    }
    fn options(&self, class: Class) -> Options {
        plan_options(class, self.rows, self.settings.cache)
    }
    /// Compiles and captures what logits of every one of `tokens` tokens need, with progress; else that happens at their first step.
    pub fn prepare_all_logits(&mut self, tokens: usize, progress: &dyn Fn(Progress)) -> Result<(), Error> {
        let chunk = self.settings.chunk;
        let steps = [tokens.min(chunk), tokens % chunk];
        let classes: Vec<Class> = steps.into_iter().filter(|&n| n > 1).map(|n| self.class(n, Logits::All, 0)).collect();
        self.prepare(&classes, progress)
    }
    /// Compiles and captures these classes of step.
    fn prepare(&mut self, classes: &[Class], progress: &dyn Fn(Progress)) -> Result<(), Error> {
        let mut missing: Vec<Class> = classes.iter().copied().filter(|c| !self.captured.contains_key(c)).collect();
        missing.sort_unstable();
        missing.dedup();
        let plans: Vec<Plan> =
            missing.iter().map(|&class| self.model.plan(&self.options(class), &mut self.functions)).collect();
        let all: Vec<_> = plans.iter().flat_map(|p| p.functions()).collect();
        self.ready(&all, progress)?;
        for (class, plan) in missing.into_iter().zip(&plans) {
            let calls = self.calls(plan, progress)?;
            let captured = self.capture(&calls)?;
            self.captured.insert(class, captured);
        }
        Ok(())
    }
    /// Compiles functions in one batch and makes room for what they need.
    fn ready(&mut self, all: &[&Arc<Function>], progress: &dyn Fn(Progress)) -> Result<Vec<Arc<Ready>>, Error> {
        let all: Vec<Arc<Function>> = all.iter().map(|&f| f.clone()).collect();
        let ready = self.jit.prepare(&all, &|done, total| progress(Progress::Compiling(done, total)))?;
        let need = Jit::arena(&ready);
        if need > self.arena.len() {
            // Steps that are captured would keep the arena they are bound to: they go with it, and are captured again when they are
            // taken again. None of them runs: whoever prepares has waited.
            self.captured.clear();
            self.decoders.clear();
            self.arena = self.device().alloc(need, Memory::State)?;
        }
        Ok(ready)
    }
    /// The calls of a plan, their functions compiled.
    fn calls(&mut self, plan: &Plan, progress: &dyn Fn(Progress)) -> Result<Vec<Call>, Error> {
        let functions: Vec<_> = plan.calls.iter().map(|c| &c.function).collect();
        let ready = self.ready(&functions, progress)?;
        let args = |call: &arch::Call| call.binds.iter().map(|b| self.bound(b)).collect();
        Ok(plan.calls.iter().zip(ready).map(|(call, function)| Call { function, args: args(call) }).collect())
    }
    fn capture(&self, calls: &[Call]) -> Result<Captured, Error> {
        let replay = self.jit.capture(calls, &self.arena)?;
        let programs = |c: &Call| c.function.compiled.programs.len();
        let launches = calls.iter().flat_map(|c| (0..programs(c)).map(|i| (c.function.clone(), i))).collect();
        Ok(Captured { replay, launches })
    }
    fn bound(&self, bind: &Bind) -> Buffer {
        match bind {
            Bind::Tokens => self.tokens.clone(),
            Bind::Rope => self.rope.clone(),
            Bind::Hidden(i) => self.hidden[i % 2].clone(),
            Bind::State(layer, plane) => self.states[*layer][*plane].clone(),
            Bind::Weight(name) => self.weights.get(name).expect("loaded for all plans").clone(),
            Bind::Logits => self.logits.clone(),
        }
    }
    /// The most tokens one step at that position may take, so that attention's partial results stay bounded.
    fn step_limit(&self, position: usize, steps: Steps) -> usize {
        let target = self.device().target();
        let limit = |most: usize| {
            let row = self.model.partial(self.options(self.class(most, Logits::None, position)).attention) * 4;
            let chunk = gristmill_compiler::chunk_positions(most as i64, self.rows as i64, target) as usize;
            let chunks = (position + most).div_ceil(chunk).max(1);
            (ATTENTION_BYTES / (chunks * row)).max(8).min(most)
        };
        let few = FEW.min(self.settings.chunk);
        let chunk = limit(self.settings.chunk);
        if chunk > few || steps == Steps::Chunks { chunk } else { limit(few) }
    }
    /// Runs `tokens` at `position` and after; returns logits: of the last token, or of every token (row-major `[n, vocabulary]`).
    pub fn forward(&mut self, tokens: &[u32], position: usize, all: bool) -> Result<&[f32], Error> {
        self.forward_with(tokens, position, if all { Logits::All } else { Logits::Last })
    }
    /// Are these tokens that can be run: some, and all in the vocabulary?
    pub fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        let vocabulary = self.model.vocabulary();
        if tokens.is_empty() {
            return Err(Error::Empty);
        }
        match tokens.iter().find(|&&t| t as usize >= vocabulary) {
            Some(&token) => Err(Error::Token { token, vocabulary }),
            None => Ok(()),
        }
    }
    /// As [`Engine::forward`], with those logits.
    pub fn forward_with(&mut self, tokens: &[u32], position: usize, wanted: Logits) -> Result<&[f32], Error> {
        self.forward_in(tokens, position, wanted, Steps::Fitting)
    }
    /// As [`Engine::forward_with`], always in steps of the largest class, however few the tokens. What a token leaves in the cache
    /// is then the same to the bit wherever the steps are cut: it depends on that token and those before it alone.
    pub fn forward_chunks(&mut self, tokens: &[u32], position: usize, wanted: Logits) -> Result<&[f32], Error> {
        self.forward_in(tokens, position, wanted, Steps::Chunks)
    }
    fn forward_in(&mut self, tokens: &[u32], position: usize, wanted: Logits, steps: Steps) -> Result<&[f32], Error> {
        self.check(tokens)?;
        if position.checked_add(tokens.len()).is_none_or(|end| end > self.context) {
            return Err(Error::Full(self.context));
        }
        self.finish()?;
        self.logits_host.clear();
        self.fill_rope(position + tokens.len())?;
        let mut at = 0;
        while at < tokens.len() {
            let n = (tokens.len() - at).min(self.step_limit(position + at, steps));
            let last = at + n == tokens.len();
            let logits = match (wanted, last) {
                (Logits::Last, false) => Logits::None,
                _ => wanted,
            };
            self.step(&tokens[at..at + n], position + at, logits, steps)?;
            at += n;
        }
        Ok(&self.logits_host)
    }
    fn step(&mut self, tokens: &[u32], position: usize, logits: Logits, steps: Steps) -> Result<(), Error> {
        // One token's logits are all of its logits.
        let logits = if tokens.len() > 1 || logits == Logits::None { logits } else { Logits::Last };
        let class = match steps {
            Steps::Fitting => self.class(tokens.len(), logits, position),
            Steps::Chunks => Class { tokens: self.settings.chunk, logits, depth: self.rows },
        };
        self.prepare(&[class], &|_| ())?;
        self.set_tokens(tokens)?;
        let vars = [("pos", position as i64), ("n", tokens.len() as i64)];
        let captured = self.prepared(&class);
        captured.replay.replay(&vars)?;
        self.read_logits(match logits {
            Logits::None => 0,
            Logits::Last => 1,
            Logits::All => tokens.len(),
        })
    }
    /// Appends so many rows of logits to those on the host.
    fn read_logits(&mut self, rows: usize) -> Result<(), Error> {
        if rows > 0 {
            let old = self.logits_host.len();
            let vocabulary = self.model.vocabulary();
            self.logits_host.resize(old + rows * vocabulary, 0.0);
            let device = self.jit.device().clone();
            device.read(&self.logits, 0, bytemuck::cast_slice_mut(&mut self.logits_host[old..]))?;
        }
        Ok(())
    }
    /// Time of every launch of the step that these tokens take, at most a chunk, at that position: for `profile`.
    pub fn timed_step(&mut self, tokens: &[u32], position: usize) -> Result<Vec<f64>, Error> {
        let (class, vars) = self.ready_step(tokens, position)?;
        let captured = self.prepared(&class);
        Ok(captured.replay.replay_timed(&vars)?)
    }
    /// As [`Engine::timed_step`], with when each worker was at each launch, and the logits read as they are for a caller.
    pub fn traced_step(&mut self, tokens: &[u32], position: usize) -> Result<Vec<Span>, Error> {
        let (class, vars) = self.ready_step(tokens, position)?;
        let captured = self.prepared(&class);
        let spans = captured.replay.replay_traced(&vars)?;
        self.logits_host.clear();
        self.read_logits(1)?;
        Ok(spans)
    }
    /// Makes the step of these tokens, at most a chunk, at that position ready to be replayed: its class and variables.
    fn ready_step(&mut self, tokens: &[u32], position: usize) -> Result<(Class, Variables), Error> {
        self.check(tokens)?;
        self.finish()?;
        let class = self.class(tokens.len(), Logits::Last, position);
        self.prepare(&[class], &|_| ())?;
        self.fill_rope(position + tokens.len())?;
        self.set_tokens(tokens)?;
        Ok((class, [("pos", position as i64), ("n", tokens.len() as i64)]))
    }
    /// The most tokens that the step of so many tokens is compiled for.
    pub fn step_tokens(&self, tokens: usize) -> usize {
        self.class(tokens, Logits::Last, 0).tokens
    }
    /// The function and program number of every launch of a step of so many tokens at that position, in order.
    pub fn step_launches(&self, tokens: usize, position: usize) -> &[(Arc<Ready>, usize)] {
        self.captured.get(&self.class(tokens, Logits::Last, position)).map_or(&[], |c| &c.launches)
    }
    /// The captured step of a class that [`Engine::prepare`] has made ready.
    fn prepared(&mut self, class: &Class) -> &mut Captured {
        match self.captured.get_mut(class) {
            Some(captured) => captured,
            None => unreachable!("{class:?} was prepared"),
        }
    }
    fn set_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        let ids: Vec<u8> = tokens.iter().flat_map(|t| (*t as i32).to_le_bytes()).collect();
        Ok(self.device().write(&self.tokens, 0, &ids)?)
    }
    /// The rope table grows with the context in use.
    fn fill_rope(&mut self, positions: usize) -> Result<(), Error> {
        if positions <= self.rope_filled {
            return Ok(());
        }
        let want = positions.next_multiple_of(1024).min(self.rows);
        let table = self.model.rope_table(want);
        self.device().write(&self.rope, 0, bytemuck::cast_slice(&table))?;
        self.rope_filled = want;
        Ok(())
    }
}

/// The context asked for, or what the model allows within a sensible share of memory. `footprint` are its bytes beside the weights.
fn choose_context(settings: &Settings, most: usize, footprint: &Footprint, available: u64) -> Result<usize, Error> {
    let fits = || footprint.longest(most, available);
    let refused = |context, fits| {
        let need = footprint.bytes(context) >> 20;
        Err(Error::Context { context, need, available: available >> 20, fits })
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
    fn a_lost_device_is_told_from_other_errors() {
        let lost = gristmill_runtime::Error::Lost { device: "cuda:0".into(), what: "it fell".into(), hint: "".into() };
        assert!(Error::from(lost).is_lost() && !Error::Empty.is_lost());
        assert!(!Error::from(gristmill_runtime::Error::invalid("a launch", "has no buffers")).is_lost());
    }

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
        let Error::Context { context: 20_000, need: 23, available: 11, fits } = error else { panic!("{error}") };
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
