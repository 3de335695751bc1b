//! A model on a device: its weights, states and captured steps, which all classes of step share.

use super::captured::{Captured, Variables};
use super::class::{CacheShape, Class, FEW, Settings, plan_options};
use super::error::{Error, Progress};
use super::inputs::Inputs;
use super::pool::Pool;
use super::seen::Seen;
use crate::arch::{self, Bind, Functions, Logits, Model, Options, Plan, Plane, RopeTable};
use crate::load::{Weights, check_layouts};
use crate::sampling::Choice;
use crate::traffic::{self, Traffic};
use gristmill_runtime::{Buffer, Device, Memory, Span};
use gristmill_tensor::jit::{Call, Jit, Ready};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Bytes that the partial results of attention in one step may take, at least; longer prompts go in smaller steps.
pub(super) const ATTENTION_BYTES: usize = 256 << 20;

/// Which class a step is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Steps {
    /// The smallest that takes its tokens: the fastest.
    Fitting,
    /// The largest.
    Chunks,
}

/// A generation under way. Steps are told by their position.
#[derive(Clone, Copy)]
pub(super) struct Decoding {
    pub(super) choice: Choice,
    /// Is a step started before the token of the one before is read?
    pub(super) ahead: bool,
    /// The next to be started, the next to be waited for, the next whose token is read.
    pub(super) next: usize,
    pub(super) waited: usize,
    pub(super) read: usize,
    /// Behind the last that may be started.
    pub(super) end: usize,
}

/// A model, ready to run.
pub struct Engine {
    pub(super) model: Box<dyn Model>,
    pub(super) jit: Jit,
    pub(super) settings: Settings,
    pub(super) context: usize,
    pub(super) cache: CacheShape,
    /// Of a cache by pages, what its steps read besides.
    pub(super) pool: Option<Pool>,
    /// Depths of steps of one token, ascending; the last is all rows.
    pub(super) depths: Vec<usize>,
    pub(super) weights: Weights,
    /// What each layer keeps of tokens, and where.
    pub(super) planes: Vec<Vec<Plane>>,
    pub(super) states: Vec<Vec<Buffer>>,
    pub(super) hidden: [Buffer; 2],
    pub(super) tokens: Buffer,
    /// What the model makes of the tokens for all its layers, if it does.
    pub(super) layer_input: Option<Buffer>,
    /// Tables of rotations, and where they lie.
    pub(super) rope_tables: Vec<RopeTable>,
    pub(super) rope: Vec<Buffer>,
    pub(super) logits: Buffer,
    pub(super) arena: Buffer,
    pub(super) functions: Functions,
    pub(super) captured: FxHashMap<Class, Captured>,
    /// Steps of one token that end with the choice of the next, by how deep they reach.
    pub(super) decoders: FxHashMap<(Choice, usize), Captured>,
    pub(super) decoding: Option<Decoding>,
    /// Tokens chosen and random numbers, one each for a position; the numbers of the request.
    pub(super) chosen: Buffer,
    pub(super) random: Buffer,
    pub(super) request: Buffer,
    pub(super) logits_host: Vec<f32>,
    pub(super) rope_filled: usize,
    /// What rings have of the sequence.
    pub(super) seen: Seen,
    /// Numbers of a partial result of attention for a token and a chunk of the cache, by the most tokens of a class.
    pub(super) partials: FxHashMap<usize, usize>,
    /// Most bytes of these in one step.
    pub(super) attention_bytes: usize,
}

impl Engine {
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
    /// Bytes of all that it has on the device: weights, cache, activations. Of the cache, rows that were never used may take no memory yet.
    pub fn memory_bytes(&self) -> u64 {
        let one = [&self.tokens, &self.logits, &self.arena, &self.chosen, &self.random, &self.request];
        let states = self.states.iter().flatten().chain(&self.hidden).chain(&self.rope);
        let states = states.chain(&self.layer_input).chain(self.pool.iter().flat_map(Pool::buffers)).chain(one);
        self.weight_bytes() + states.map(|buffer| buffer.len() as u64).sum::<u64>()
    }
    /// Most tokens of one step, but for those of long prompts.
    pub fn chunk(&self) -> usize {
        self.settings.chunk
    }
    /// Most tokens of a step of a long prompt.
    pub fn longest_step(&self) -> usize {
        self.settings.long.unwrap_or(self.settings.chunk)
    }
    /// Bytes of the states of all layers, whatever the number of tokens; 0 if there are none.
    pub fn state_bytes(&self) -> usize {
        self.model.state_bytes()
    }
    /// Launches of one step at that position, if it has been taken: of one token with the choice of the next, the largest, or of a chunk with the logits
    /// after its last token.
    pub fn launches(&self, chunk: bool, position: usize) -> usize {
        let captured = match chunk {
            true => self.captured.get(&self.class(self.longest_step(), Logits::Last, position)),
            false => self.decoders.get(&(Choice::Greedy, self.depth(position))),
        };
        captured.map_or(0, |c| c.launches.len())
    }
    /// What a step of so many tokens at that position must read.
    pub fn traffic(&mut self, tokens: usize, position: usize) -> Traffic {
        let plan = self.model.plan(&self.options(self.class(1, Logits::Last, position)), &mut self.functions);
        let bytes = |name: &str| self.weights.get(name).map_or(0, |b| b.len() as u64);
        let rows = position + tokens.saturating_sub(1) / 2 + 1;
        // States are written as well, which counts as reading.
        let cache = traffic::cache(&plan, rows) + (2 * self.state_bytes()) as f64;
        Traffic { weights: traffic::weights(&plan, tokens, &bytes), cache }
    }
    /// Fills the cache of every layer before `position` with numbers that mean nothing but take the memory and the time of
    /// real ones, so that the speed at a depth can be measured without running the tokens before it.
    pub fn pretend(&mut self, position: usize) -> Result<(), Error> {
        self.finish()?;
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
        for (plane, buffer) in self.planes.iter().flatten().zip(self.states.iter().flatten()) {
            let mut piece = Vec::with_capacity(1 << 20);
            while piece.len() < 1 << 20 {
                match plane.scalar {
                    Scalar::I8 => piece.push((next() * 127.0) as i8 as u8),
                    Scalar::F16 => piece.extend(half::f16::from_f32(next() * most).to_le_bytes()),
                    _ => piece.extend((next() * most).to_le_bytes()),
                }
            }
            // Of a pool all pages: which of them a sequence will have is not known.
            let rows = self.cache.plane_rows(plane);
            let all = self.pool.is_some() || plane.is_state();
            let bytes = plane.bytes(if all { rows } else { position.min(rows) });
            for at in (0..bytes).step_by(piece.len()) {
                let n = piece.len().min(bytes - at);
                self.jit.device().write(buffer, at, &piece[..n])?;
            }
        }
        Ok(())
    }
    /// Distinct functions compiled.
    pub fn compiled(&self) -> usize {
        self.jit.compiled()
    }
    /// The class of a step of `n` tokens at that position.
    pub(super) fn class(&self, n: usize, logits: Logits, position: usize) -> Class {
        let tokens = match n {
            1 => 1,
            _ if n <= FEW => FEW.min(self.settings.chunk),
            _ if n <= self.settings.chunk => self.settings.chunk,
            _ => self.longest_step(),
        };
        let depth = if tokens > 1 { self.cache.rows } else { self.depth(position) };
        Class { tokens, batch: false, others: 0, logits, depth }
    }
    /// The depth of a step of one token at that position: the least that reaches it.
    pub(super) fn depth(&self, position: usize) -> usize {
        self.depths.iter().copied().find(|&d| position < d).unwrap_or(self.cache.rows)
    }
    pub(super) fn options(&self, class: Class) -> Options {
        plan_options(class, self.cache, self.jit.target())
    }
    /// Compiles and captures what logits of every one of `tokens` tokens need, with progress; else that happens at their first step.
    pub fn prepare_all_logits(&mut self, tokens: usize, progress: &dyn Fn(Progress)) -> Result<(), Error> {
        let chunk = self.settings.chunk;
        let steps = [tokens.min(chunk), tokens % chunk];
        let classes: Vec<Class> = steps.into_iter().filter(|&n| n > 1).map(|n| self.class(n, Logits::All, 0)).collect();
        self.prepare(&classes, progress)
    }
    /// Compiles and captures these classes of step.
    pub(super) fn prepare(&mut self, classes: &[Class], progress: &dyn Fn(Progress)) -> Result<(), Error> {
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
    pub(super) fn ready(
        &mut self,
        all: &[&Arc<Function>],
        progress: &dyn Fn(Progress),
    ) -> Result<Vec<Arc<Ready>>, Error> {
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
    pub(super) fn calls(&mut self, plan: &Plan, progress: &dyn Fn(Progress)) -> Result<Vec<Call>, Error> {
        let inputs = self.pool.as_ref().map(|pool| pool.inputs.clone());
        self.calls_with(plan, inputs.as_ref(), progress)
    }
    /// The same, of a step that reads these.
    pub(super) fn calls_with(
        &mut self,
        plan: &Plan,
        inputs: Option<&Inputs>,
        progress: &dyn Fn(Progress),
    ) -> Result<Vec<Call>, Error> {
        let functions: Vec<_> = plan.calls.iter().map(|c| &c.function).collect();
        let ready = self.ready(&functions, progress)?;
        plan.calls.iter().zip(&ready).try_for_each(|(call, ready)| check_layouts(&self.weights, call, ready))?;
        let args = |call: &arch::Call| call.binds.iter().map(|b| self.bound(b, inputs)).collect();
        Ok(plan.calls.iter().zip(ready).map(|(call, function)| Call { function, args: args(call) }).collect())
    }
    pub(super) fn capture(&self, calls: &[Call]) -> Result<Captured, Error> {
        let replay = self.jit.capture(calls, &self.arena)?;
        let programs = |c: &Call| c.function.compiled.programs.len();
        let launches = calls.iter().flat_map(|c| (0..programs(c)).map(|i| (c.function.clone(), i))).collect();
        Ok(Captured { replay, launches })
    }
    fn bound(&self, bind: &Bind, inputs: Option<&Inputs>) -> Buffer {
        match bind {
            Bind::Tokens => self.tokens.clone(),
            Bind::Rope(table) => self.rope[*table].clone(),
            Bind::Hidden(i) => self.hidden[i % 2].clone(),
            Bind::LayerInput(layer) => {
                let (all, begin) = (self.layer_input.as_ref(), layer * self.model.layer_input() * size_of::<f32>());
                let part = all.and_then(|all| all.slice(begin, all.len() - begin).ok());
                part.expect("a model whose layers have inputs says so")
            }
            Bind::State(layer, plane) => self.states[*layer][*plane].clone(),
            Bind::Weight(name) => self.weights.get(name).expect("loaded for all plans").clone(),
            Bind::Logits => self.logits.clone(),
            Bind::Pages | Bind::WindowPages | Bind::StateRow => {
                self.pool.as_ref().expect("a step by pages is an engine's with a pool").bound(bind)
            }
            Bind::Positions | Bind::Slots | Bind::Table | Bind::WindowTable | Bind::StateRows => {
                inputs.expect("as are those of several").bound(bind)
            }
        }
    }
    /// The most tokens one step at that position may take, so that attention's partial results stay bounded.
    pub(super) fn step_limit(&self, position: usize, steps: Steps) -> usize {
        let target = self.device().target();
        let limit = |most: usize| {
            let row =
                self.partials.get(&self.class(most, Logits::None, position).tokens).map_or(0, |numbers| numbers * 4);
            let chunk = gristmill_compiler::chunk_positions(most as i64, self.cache.rows as i64, target) as usize;
            let chunks = (position + most).div_ceil(chunk).max(1);
            (self.attention_bytes / (chunks * row).max(1)).max(8).min(most)
        };
        let (few, chunk) = (FEW.min(self.settings.chunk), limit(self.settings.chunk));
        if steps == Steps::Chunks {
            return chunk;
        }
        match limit(self.longest_step()) {
            long if long > self.settings.chunk => long,
            _ if chunk > few => chunk,
            _ => limit(few),
        }
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
    /// As [`Engine::forward_with`], always in steps of the class of chunks, however few the tokens. What a token leaves in the cache
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
            // Logits of every token have room for those of a chunk.
            let most = if wanted == Logits::All { self.settings.chunk } else { usize::MAX };
            let n = (tokens.len() - at).min(self.step_limit(position + at, steps)).min(most);
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
    pub(super) fn step(&mut self, tokens: &[u32], position: usize, logits: Logits, steps: Steps) -> Result<(), Error> {
        // One token's logits are all of its logits.
        let logits = if tokens.len() > 1 || logits == Logits::None { logits } else { Logits::Last };
        let class = match steps {
            Steps::Fitting => self.class(tokens.len(), logits, position),
            Steps::Chunks => {
                Class { tokens: self.settings.chunk, batch: false, others: 0, logits, depth: self.cache.rows }
            }
        };
        self.prepare(&[class], &|_| ())?;
        self.set_tokens(tokens)?;
        let vars = [("pos", position as i64), ("n", tokens.len() as i64)];
        self.seen.step(position..position + tokens.len());
        let captured = self.prepared(&class);
        captured.replay.replay(&vars)?;
        self.read_logits(match logits {
            Logits::None => 0,
            Logits::Last | Logits::Ends => 1,
            Logits::All => tokens.len(),
        })
    }
    /// Appends so many rows of logits to those on the host.
    pub(super) fn read_logits(&mut self, rows: usize) -> Result<(), Error> {
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
        self.seen.step(position..position + tokens.len());
        Ok((class, [("pos", position as i64), ("n", tokens.len() as i64)]))
    }
    /// The most tokens that the step of so many tokens is compiled for.
    pub fn step_tokens(&self, tokens: usize) -> usize {
        self.class(tokens, Logits::Last, 0).tokens
    }
    /// How the step of so many tokens at that position is planned.
    pub fn step_plan(&mut self, tokens: usize, position: usize) -> Plan {
        let options = self.options(self.class(tokens, Logits::Last, position));
        self.model.plan(&options, &mut self.functions)
    }
    /// The function and program number of every launch of a step of so many tokens at that position, in order.
    pub fn step_launches(&self, tokens: usize, position: usize) -> &[(Arc<Ready>, usize)] {
        self.captured.get(&self.class(tokens, Logits::Last, position)).map_or(&[], |c| &c.launches)
    }
    /// The captured step of a class that [`Engine::prepare`] has made ready.
    pub(super) fn prepared(&mut self, class: &Class) -> &mut Captured {
        match self.captured.get_mut(class) {
            Some(captured) => captured,
            None => unreachable!("{class:?} was prepared"),
        }
    }
    pub(super) fn set_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        let ids: Vec<u8> = tokens.iter().flat_map(|t| (*t as i32).to_le_bytes()).collect();
        Ok(self.device().write(&self.tokens, 0, &ids)?)
    }
    /// The tables of rotations grow with the context in use.
    pub(super) fn fill_rope(&mut self, positions: usize) -> Result<(), Error> {
        if positions <= self.rope_filled {
            return Ok(());
        }
        let want = positions.next_multiple_of(1024).min(self.cache.rows);
        for (table, buffer) in self.rope_tables.iter().zip(&self.rope) {
            self.device().write(buffer, 0, bytemuck::cast_slice(&table.rows(want)))?;
        }
        self.rope_filled = want;
        Ok(())
    }
}
