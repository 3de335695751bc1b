//! The jit: functions compiled once, calls bound to buffers, steps captured.
//!
//! The schedule cache is keyed by what a function computes ([`Key`]), not by its name, so the 46 equal layers of a model, and a second
//! model of the same shapes, compile nothing new.

use crate::function::{ContentKey, Key};
use crate::function_store::FunctionStore;
use gristmill_backend::Opened;
use gristmill_compiler::ir::layout::{Layout, Packing};
use gristmill_compiler::prepack::{PackedRows, prepack};
use gristmill_compiler::{Cheapest, Compiled, Policy, compile};
use gristmill_runtime::{Buffer, Device, Error, Kernel, Launch, Memory, Replay};
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::function::Function;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that is ready to be called.
pub struct Ready {
    /// What it computes.
    pub function: Arc<Function>,
    /// How: programs, levels, memory.
    pub compiled: Compiled,
    /// Its kernels on the device, one for each launch.
    pub kernels: Vec<Arc<dyn Kernel>>,
}

/// A call: a function and the buffer of each of its slots.
#[derive(Clone)]
pub struct Call {
    /// Which function.
    pub function: Arc<Ready>,
    /// A buffer for each slot, in order.
    pub args: Vec<Buffer>,
}

/// Compiles functions for one device.
pub struct Jit {
    opened: Opened,
    ready: FxHashMap<Key, Arc<Ready>>,
    packers: FxHashMap<(EncodingRef, Layout, usize), Arc<dyn Kernel>>,
}

impl Jit {
    /// For that device.
    pub fn new(opened: Opened) -> Jit {
        Jit { opened, ready: FxHashMap::default(), packers: FxHashMap::default() }
    }
    /// The machine that kernels are written for.
    pub fn target(&self) -> &Target {
        &self.opened.target
    }
    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.opened.device
    }
    /// Distinct functions compiled so far.
    pub fn compiled(&self) -> usize {
        self.ready.len()
    }
    /// Compiles what is new among `functions` in one batch, or reads from the device's store what was compiled before; returns all of them, in
    /// order. `progress(done, total)` counts kernels.
    pub fn prepare(
        &mut self,
        functions: &[Arc<Function>],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<Ready>>, Error> {
        let Opened { device, dialect, target } = self.opened.clone();
        let kept = device.store().map(|store| FunctionStore { store, device: device.name(), target: &target });
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
        let keys: Vec<Key> = functions.iter().map(|f| f.as_ref().key()).collect();
        let new = self.new_among(functions, &keys);
        let compiled = on_all_cores(&new, compiled);
        self.load(&keys, new.into_iter().zip(compiled), progress)
    }
    /// As `prepare`, with decisions answered by that policy, function by function; nothing is read or kept.
    pub fn prepare_with(
        &mut self,
        functions: &[Arc<Function>],
        policy: &mut dyn Policy,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<Ready>>, Error> {
        let Opened { dialect, target, .. } = self.opened.clone();
        let keys: Vec<Key> = functions.iter().map(|f| f.as_ref().key()).collect();
        let new = self.new_among(functions, &keys);
        let compiled: Vec<Compiled> = new.iter().map(|(_, f)| compile(f, &target, dialect, policy)).collect();
        self.load(&keys, new.into_iter().zip(compiled), progress)
    }
    /// Those of these keys that are not compiled, each once.
    fn new_among(&self, functions: &[Arc<Function>], keys: &[Key]) -> Vec<(Key, Arc<Function>)> {
        let mut new: Vec<(Key, Arc<Function>)> = Vec::new();
        for (function, key) in functions.iter().zip(keys) {
            if !self.ready.contains_key(key) && !new.iter().any(|n| n.0 == *key) {
                new.push((*key, Arc::clone(function)));
            }
        }
        new
    }
    /// Brings what was compiled to the device, in one batch; all that have these keys.
    fn load(
        &mut self,
        keys: &[Key],
        new: impl Iterator<Item = ((Key, Arc<Function>), Compiled)>,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<Ready>>, Error> {
        let new: Vec<((Key, Arc<Function>), Compiled)> = new.collect();
        let programs: Vec<Program> = new.iter().flat_map(|n| n.1.programs.iter().map(|p| p.as_ref().clone())).collect();
        let mut kernels = self.opened.device.load(&programs, progress)?.into_iter();
        for ((key, function), compiled) in new {
            let kernels = kernels.by_ref().take(compiled.programs.len()).collect();
            self.ready.insert(key, Arc::new(Ready { function, compiled, kernels }));
        }
        Ok(keys.iter().map(|k| self.ready[k].clone()).collect())
    }
    /// Loads the kernels that bring rows of `columns` elements from the layout of their file into another, in one batch.
    pub fn prepare_packers(&mut self, wanted: &[(EncodingRef, Layout, usize)]) -> Result<(), Error> {
        let mut new: Vec<(EncodingRef, Layout, usize)> = Vec::new();
        let mut programs = Vec::new();
        for &(e, layout, columns) in wanted {
            let key = (e, layout, columns);
            if layout == Layout::File || self.packers.contains_key(&key) || new.contains(&key) {
                continue;
            }
            let packing = Packing::for_encoding(e)
                .ok_or_else(|| Error::invalid(e.name, "has no other layout than its file's"))?;
            let (target, dialect) = (&self.opened.target, self.opened.dialect);
            programs.push(prepack(&PackedRows { encoding: e, packing: &packing, layout, columns }, target, dialect));
            new.push(key);
        }
        let kernels = self.opened.device.load(&programs, &|_, _| ())?;
        self.packers.extend(new.into_iter().zip(kernels));
        Ok(())
    }
    /// The kernel that does so for one kind; it has been prepared.
    pub fn packer(&self, (e, layout, columns): (EncodingRef, Layout, usize)) -> Result<Packer, Error> {
        let kernel =
            self.packers.get(&(e, layout, columns)).ok_or_else(|| Error::invalid(e.name, "was not prepared"))?;
        Ok(Packer { device: self.device().clone(), kernel: kernel.clone(), lanes: layout.lanes() })
    }
    /// Bytes that intermediates of these functions need at most.
    pub fn arena(functions: &[Arc<Ready>]) -> usize {
        functions.iter().map(|f| f.compiled.arena).max().unwrap_or(0)
    }
    /// Binds calls, one after the other, into a step. `arena` holds the intermediates of one call at a time.
    pub fn capture(&self, calls: &[Call], arena: &Buffer) -> Result<Box<dyn Replay>, Error> {
        self.opened.device.capture(launches(calls, arena)?)
    }
    /// Allocates, runs once and forgets: for tests and one-off work.
    pub fn run(&self, calls: &[Call], vars: &[(&str, i64)]) -> Result<(), Error> {
        let most = calls.iter().map(|c| c.function.compiled.arena).max().unwrap_or(0);
        let arena = self.opened.device.alloc(most.max(64), Memory::Scratch)?;
        self.capture(calls, &arena)?.replay(vars)
    }
}

/// Brings rows of a weight from the layout of their file into another.
pub struct Packer {
    device: Arc<dyn Device>,
    kernel: Arc<dyn Kernel>,
    lanes: i64,
}

impl Packer {
    /// Packs so many rows.
    pub fn pack(&self, file: &Buffer, packed: &Buffer, rows: usize) -> Result<(), Error> {
        self.start(file, packed, rows)?.wait()
    }
    /// Starts that; to be waited for before `file` is changed.
    pub fn start(&self, file: &Buffer, packed: &Buffer, rows: usize) -> Result<Box<dyn Replay>, Error> {
        let mut step = self.device.capture(self.launch(file, packed))?;
        step.start(&self.groups(rows))?;
        Ok(step)
    }
    /// Packs them on this thread, beside others that do so.
    pub fn pack_alone(&self, file: &Buffer, packed: &Buffer, rows: usize) -> Result<(), Error> {
        self.device.capture_alone(self.launch(file, packed))?.replay(&self.groups(rows))
    }
    fn launch(&self, file: &Buffer, packed: &Buffer) -> Vec<Launch> {
        let buffer = |slot: u32| if slot == 0 { file.clone() } else { packed.clone() };
        let buffers = self.kernel.program().params.iter().map(|p| buffer(p.slot)).collect();
        vec![Launch { kernel: self.kernel.clone(), buffers, level: 0 }]
    }
    fn groups(&self, rows: usize) -> [(&'static str, i64); 1] {
        [("groups", rows as i64 / self.lanes)]
    }
}

/// The launches of calls: slots and intermediates resolved to buffers, levels counted on.
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
            out.push(Launch { kernel: kernel.clone(), buffers, level: base + level });
            levels = levels.max(level + 1);
        }
        base += levels;
    }
    Ok(out)
}

/// What becomes of each of these, in their order; as many at a time as there are cores.
fn on_all_cores<T: Sync, R: Send>(all: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(of) = all.get(i) else { return done };
            done.push((i, each(of)));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(all.len());
    let mut done = std::thread::scope(|scope| {
        let others: Vec<_> = (1..cores).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        done.extend(others.into_iter().flat_map(|t| t.join().expect("a function that is compiled")));
        done
    });
    done.sort_unstable_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}
