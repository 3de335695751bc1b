//! The jit: compiles functions once, binds calls to buffers and captures steps.
//!
//! The schedule cache is keyed by a function's content ([`Key`]), not its name: the 46 equal layers
//! of a model, and a second model of the same shapes, compile nothing new.

use crate::function::{ContentKey, Key};
use crate::function_store::FunctionStore;
use crate::packer::{PackKey, Packer};
use gristmill_backend::Opened;
use gristmill_backend::parallel::{cores, parallel_for, yield_to_foreground};
use gristmill_compiler::{Cheapest, Compiled, Policy, compile};
use gristmill_runtime::{Buffer, Device, Error, Kernel, Launch, Memory, Replay};
use gristmill_uop::function::Function;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;

/// A compiled function whose kernels need not be loaded yet.
pub struct Planned {
    /// The captured function, which documents its slots and outputs.
    pub function: Arc<Function>,
    /// Its programs, dependency levels and memory plan.
    pub compiled: Arc<Compiled>,
}

/// A compiled function with its kernels loaded on the device.
pub struct Ready {
    /// The captured function, which documents its slots and outputs.
    pub function: Arc<Function>,
    /// Its programs, dependency levels and memory plan.
    pub compiled: Arc<Compiled>,
    /// Its kernels on the device, one for each launch.
    pub kernels: Vec<Arc<dyn Kernel>>,
}

/// One call in a step: a function, and a buffer for each of its slots.
#[derive(Clone)]
pub struct Call {
    /// The function to call, prepared by the same [`Jit`].
    pub function: Arc<Ready>,
    /// A buffer for each slot, in slot order.
    pub args: Vec<Buffer>,
}

/// Compiles functions for one device and caches them by content key.
pub struct Jit {
    opened: Opened,
    planned: FxHashMap<Key, Arc<Planned>>,
    ready: FxHashMap<Key, Arc<Ready>>,
    packers: FxHashMap<PackKey, Arc<dyn Kernel>>,
    background: Option<BackgroundLoad>,
}

impl Jit {
    /// Creates a jit with an empty cache for an opened device.
    pub fn new(opened: Opened) -> Jit {
        Jit {
            opened,
            planned: FxHashMap::default(),
            ready: FxHashMap::default(),
            packers: FxHashMap::default(),
            background: None,
        }
    }
    /// The machine description that kernels are compiled for.
    pub fn target(&self) -> &Target {
        &self.opened.target
    }
    /// The device that kernels are loaded on.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.opened.device
    }
    /// Number of distinct functions in the cache, with kernels loaded or not.
    pub fn compiled(&self) -> usize {
        self.planned.len()
    }
    /// Compiles the new ones among `functions` to programs and returns all, in order; loads no
    /// kernels.
    ///
    /// Functions found in the device's store are read, not compiled. `progress(done, total)` counts
    /// the functions.
    pub fn plan(
        &mut self,
        functions: &[Arc<Function>],
        progress: &dyn Fn(usize, usize),
    ) -> Vec<Arc<Planned>> {
        let keys: Vec<Key> = functions.iter().map(|f| f.as_ref().key()).collect();
        self.plan_keyed(functions, &keys, progress)
    }
    fn plan_keyed(
        &mut self,
        functions: &[Arc<Function>],
        keys: &[Key],
        progress: &dyn Fn(usize, usize),
    ) -> Vec<Arc<Planned>> {
        let Opened {
            device,
            dialect,
            target,
        } = self.opened.clone();
        let kept = device.store().map(|store| FunctionStore {
            store,
            device: device.name(),
            target: &target,
        });
        let compiled = |(key, function): &(Key, Arc<Function>)| {
            if let Some(found) = kept.as_ref().and_then(|kept| kept.get(function, *key)) {
                return found;
            }
            let compiled = compile(function, &target, dialect, &mut Cheapest);
            if let Some(kept) = &kept {
                kept.put(function, *key, &compiled);
            }
            compiled
        };
        let new = self.new_among(functions, keys);
        let compiled = on_all_cores(&new, compiled, progress);
        self.keep(new.into_iter().zip(compiled));
        keys.iter().map(|key| self.planned[key].clone()).collect()
    }
    /// Compiles the new ones among `functions`, loads them in one batch and returns all, in order.
    ///
    /// Waits for those that are being loaded in the background. `progress(done, total)` counts the
    /// kernels that are loaded.
    pub fn prepare(
        &mut self,
        functions: &[Arc<Function>],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<Ready>>, Error> {
        let keys: Vec<Key> = functions.iter().map(|f| f.as_ref().key()).collect();
        if !keys.iter().all(|key| self.ready.contains_key(key)) {
            self.plan_keyed(functions, &keys, &|_, _| ());
            self.await_background(&keys, progress)?;
        }
        self.load(&keys, progress)
    }
    /// Loads planned functions on a thread of its own, in this order, at a lower priority.
    ///
    /// [`Jit::prepare`] waits for the ones that it needs. Only for devices whose kernels may be
    /// loaded on any thread. Dropping the jit ends the load after the kernels in progress.
    /// On wasm32, which has no threads, the functions are loaded when they are needed.
    pub fn prepare_in_background(&mut self, functions: &[Arc<Function>]) {
        if cfg!(target_family = "wasm") {
            return;
        }
        let keys: Vec<Key> = functions.iter().map(|f| f.as_ref().key()).collect();
        let mut missing: Vec<(Key, Arc<Planned>)> = Vec::new();
        for (key, planned) in keys
            .iter()
            .zip(self.plan_keyed(functions, &keys, &|_, _| ()))
        {
            if !self.ready.contains_key(key) && !missing.iter().any(|m| m.0 == *key) {
                missing.push((*key, planned));
            }
        }
        if !missing.is_empty() && self.background.is_none() {
            self.background = Some(BackgroundLoad::start(self.device().clone(), missing));
        }
    }
    /// Takes the functions that the background load has finished; waits for those of `keys`.
    fn await_background(
        &mut self,
        keys: &[Key],
        progress: &dyn Fn(usize, usize),
    ) -> Result<(), Error> {
        let Some(mut background) = self.background.take() else {
            return Ok(());
        };
        let kernels = |pending: &[Key]| -> usize {
            let needed = pending.iter().filter(|key| keys.contains(key));
            needed
                .map(|key| self.planned[key].compiled.programs.len())
                .sum()
        };
        let (total, mut received) = (kernels(&background.pending), Vec::new());
        loop {
            let left = kernels(&background.pending);
            progress(total - left, total);
            let next = match left {
                0 => background.finished.try_recv().ok(),
                _ => background.finished.recv().ok(),
            };
            let Some(next) = next else { break };
            let (key, ready) = next?;
            background.pending.retain(|other| *other != key);
            received.push((key, ready));
        }
        self.ready.extend(received);
        if !background.pending.is_empty() {
            self.background = Some(background);
        }
        Ok(())
    }
    /// Works like [`Jit::prepare`], with decisions made by `policy`, one function at a time.
    ///
    /// The device's store is neither read nor written.
    pub fn prepare_with(
        &mut self,
        functions: &[Arc<Function>],
        policy: &mut dyn Policy,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<Ready>>, Error> {
        let Opened {
            dialect, target, ..
        } = self.opened.clone();
        let keys: Vec<Key> = functions.iter().map(|f| f.as_ref().key()).collect();
        let new = self.new_among(functions, &keys);
        let compiled: Vec<Compiled> = new
            .iter()
            .map(|(_, f)| compile(f, &target, dialect, policy))
            .collect();
        self.keep(new.into_iter().zip(compiled));
        self.load(&keys, progress)
    }
    fn keep(&mut self, new: impl Iterator<Item = ((Key, Arc<Function>), Compiled)>) {
        for ((key, function), compiled) in new {
            let compiled = Arc::new(compiled);
            self.planned
                .insert(key, Arc::new(Planned { function, compiled }));
        }
    }
    /// The functions that are not in the cache, without duplicates.
    fn new_among(&self, functions: &[Arc<Function>], keys: &[Key]) -> Vec<(Key, Arc<Function>)> {
        let mut new: Vec<(Key, Arc<Function>)> = Vec::new();
        for (function, key) in functions.iter().zip(keys) {
            if !self.planned.contains_key(key) && !new.iter().any(|n| n.0 == *key) {
                new.push((*key, Arc::clone(function)));
            }
        }
        new
    }
    /// Loads the planned functions of `keys` that are not ready, in one batch, and returns all.
    fn load(
        &mut self,
        keys: &[Key],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<Ready>>, Error> {
        let mut missing: Vec<Key> = Vec::new();
        for key in keys {
            if !self.ready.contains_key(key) && !missing.contains(key) {
                missing.push(*key);
            }
        }
        let planned: Vec<&Planned> = missing.iter().map(|key| &*self.planned[key]).collect();
        let ready = load(&*self.opened.device, &planned, progress)?;
        self.ready.extend(missing.into_iter().zip(ready));
        Ok(keys.iter().map(|key| self.ready[key].clone()).collect())
    }
    /// Loads the kernels that repack rows of these kinds, in one batch.
    ///
    /// # Errors
    /// When a format has one layout alone, or the device fails.
    pub fn prepare_packers<K: Into<PackKey> + Copy>(&mut self, wanted: &[K]) -> Result<(), Error> {
        let mut new: Vec<PackKey> = Vec::new();
        let mut programs = Vec::new();
        for &key in wanted {
            let key: PackKey = key.into();
            if key.is_copy() || self.packers.contains_key(&key) || new.contains(&key) {
                continue;
            }
            programs.push(key.program(&self.opened.target, self.opened.dialect)?);
            new.push(key);
        }
        let kernels = self.opened.device.load(&programs, &|_, _| ())?;
        self.packers.extend(new.into_iter().zip(kernels));
        Ok(())
    }
    /// Returns the packer for one kind, which [`Jit::prepare_packers`] must have prepared.
    ///
    /// # Errors
    /// When it was not prepared.
    pub fn packer(&self, key: impl Into<PackKey>) -> Result<Packer, Error> {
        let key = key.into();
        let kernel = self.packers.get(&key);
        let kernel = kernel.ok_or_else(|| Error::invalid(key.encoding.name, "was not prepared"))?;
        Ok(Packer::new(self.device().clone(), kernel.clone(), key))
    }
    /// Bytes of arena needed for the intermediates of any one of these functions.
    pub fn arena(functions: &[Arc<Ready>]) -> usize {
        let arenas = functions.iter().map(|f| f.compiled.arena);
        arenas.max().unwrap_or(0)
    }
    /// Binds calls, in order, into a step; `arena` holds the intermediates of one call at a time.
    pub fn capture(&self, calls: &[Call], arena: &Buffer) -> Result<Box<dyn Replay>, Error> {
        self.opened.device.capture(launches(calls, arena)?)
    }
    /// Allocates an arena, captures the calls and replays them once, for tests and one-off work.
    pub fn run(&self, calls: &[Call], vars: &[(&str, i64)]) -> Result<(), Error> {
        let most = calls
            .iter()
            .map(|c| c.function.compiled.arena)
            .max()
            .unwrap_or(0);
        let arena = self.opened.device.alloc(most.max(64), Memory::Scratch)?;
        self.capture(calls, &arena)?.replay(vars)
    }
}

/// Loads the kernels of planned functions on a device in one batch.
fn load(
    device: &dyn Device,
    planned: &[&Planned],
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Arc<Ready>>, Error> {
    let programs: Vec<Program> = planned
        .iter()
        .flat_map(|f| f.compiled.programs.iter().map(|p| p.as_ref().clone()))
        .collect();
    let mut kernels = device.load(&programs, progress)?.into_iter();
    let ready = |f: &&Planned| {
        Arc::new(Ready {
            function: f.function.clone(),
            compiled: f.compiled.clone(),
            kernels: kernels.by_ref().take(f.compiled.programs.len()).collect(),
        })
    };
    Ok(planned.iter().map(ready).collect())
}

/// Kernels that a background load gives to the device at a time, per core: bounds the wait at the
/// end of the program.
const BACKGROUND_KERNELS: usize = 4;

/// A load of planned functions on another thread.
struct BackgroundLoad {
    /// Functions not yet received.
    pending: Vec<Key>,
    finished: Receiver<Result<(Key, Arc<Ready>), Error>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundLoad {
    fn start(device: Arc<dyn Device>, planned: Vec<(Key, Arc<Planned>)>) -> BackgroundLoad {
        let (send, finished) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (pending, stops) = (planned.iter().map(|p| p.0).collect(), stop.clone());
        let thread = std::thread::spawn(move || {
            yield_to_foreground();
            for (key, planned) in planned {
                let ready = BackgroundLoad::load(&*device, &planned, &stops);
                let Some(ready) = ready.transpose() else {
                    return;
                };
                // The jit may be gone, or have received an error.
                if send.send(ready.map(|ready| (key, ready))).is_err() {
                    return;
                }
            }
        });
        BackgroundLoad {
            pending,
            finished,
            stop,
            thread: Some(thread),
        }
    }
    /// Loads a function in small batches; `None` if it was stopped.
    fn load(
        device: &dyn Device,
        planned: &Planned,
        stop: &AtomicBool,
    ) -> Result<Option<Arc<Ready>>, Error> {
        let programs = &planned.compiled.programs;
        let mut kernels = Vec::with_capacity(programs.len());
        for batch in programs.chunks(BACKGROUND_KERNELS * cores()) {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let batch: Vec<Program> = batch.iter().map(|p| p.as_ref().clone()).collect();
            kernels.extend(device.load(&batch, &|_, _| ())?);
        }
        Ok(Some(Arc::new(Ready {
            function: planned.function.clone(),
            compiled: planned.compiled.clone(),
            kernels,
        })))
    }
}

impl Drop for BackgroundLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The launches of calls: slots and intermediates resolved to buffers, levels numbered through.
fn launches(calls: &[Call], arena: &Buffer) -> Result<Vec<Launch>, Error> {
    let mut out = Vec::new();
    let mut base = 0;
    for call in calls {
        let compiled = &call.function.compiled;
        let mut levels = 0;
        for (kernel, &level) in call.function.kernels.iter().zip(&compiled.levels) {
            let mut buffers = Vec::new();
            for param in &kernel.program().params {
                buffers.push(match compiled.temp(param.slot) {
                    Some((bytes, at)) => arena.slice(at, bytes)?,
                    None => call.args[param.slot as usize].clone(),
                });
            }
            out.push(Launch {
                kernel: kernel.clone(),
                buffers,
                level: base + level,
            });
            levels = levels.max(level + 1);
        }
        base += levels;
    }
    Ok(out)
}

/// Maps `each` over all items on all available cores; results are in the items' order.
fn on_all_cores<T: Sync, R: Send>(
    all: &[T],
    each: impl Fn(&T) -> R + Sync,
    progress: &dyn Fn(usize, usize),
) -> Vec<R> {
    let mut done: Vec<(usize, R)> = Vec::with_capacity(all.len());
    let finished = |number, result| {
        done.push((number, result));
        progress(done.len(), all.len());
        Ok(())
    };
    progress(0, all.len());
    let work = |number: usize| Ok::<R, std::convert::Infallible>(each(&all[number]));
    match parallel_for(all.len(), cores(), work, finished) {
        Ok(()) => {}
        Err(never) => match never {},
    }
    done.sort_unstable_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}
