//! The jit: compiles functions once, binds calls to buffers and captures steps.
//!
//! The schedule cache is keyed by a function's content ([`Key`]), not its name: the 46 equal layers
//! of a model, and a second model of the same shapes, compile nothing new.

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

/// A compiled function with its kernels loaded on the device.
pub struct Ready {
    /// The captured function, which documents its slots and outputs.
    pub function: Arc<Function>,
    /// Its programs, dependency levels and memory plan.
    pub compiled: Compiled,
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
    ready: FxHashMap<Key, Arc<Ready>>,
    packers: FxHashMap<(EncodingRef, Layout, usize), Arc<dyn Kernel>>,
}

impl Jit {
    /// Creates a jit with an empty cache for an opened device.
    pub fn new(opened: Opened) -> Jit {
        Jit {
            opened,
            ready: FxHashMap::default(),
            packers: FxHashMap::default(),
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
    /// Number of distinct functions in the cache.
    pub fn compiled(&self) -> usize {
        self.ready.len()
    }
    /// Compiles the new ones among `functions`, loads them in one batch and returns all, in order.
    ///
    /// Functions found in the device's store are read, not compiled. `progress(done, total)` counts
    /// the kernels that are loaded.
    pub fn prepare(
        &mut self,
        functions: &[Arc<Function>],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<Ready>>, Error> {
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
        let keys: Vec<Key> = functions.iter().map(|f| f.as_ref().key()).collect();
        let new = self.new_among(functions, &keys);
        let compiled = on_all_cores(&new, compiled);
        self.load(&keys, new.into_iter().zip(compiled), progress)
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
        self.load(&keys, new.into_iter().zip(compiled), progress)
    }
    /// The functions that are not in the cache, without duplicates.
    fn new_among(&self, functions: &[Arc<Function>], keys: &[Key]) -> Vec<(Key, Arc<Function>)> {
        let mut new: Vec<(Key, Arc<Function>)> = Vec::new();
        for (function, key) in functions.iter().zip(keys) {
            if !self.ready.contains_key(key) && !new.iter().any(|n| n.0 == *key) {
                new.push((*key, Arc::clone(function)));
            }
        }
        new
    }
    /// Loads newly compiled functions on the device in one batch, and returns those of all `keys`.
    fn load(
        &mut self,
        keys: &[Key],
        new: impl Iterator<Item = ((Key, Arc<Function>), Compiled)>,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<Ready>>, Error> {
        let new: Vec<((Key, Arc<Function>), Compiled)> = new.collect();
        let programs: Vec<Program> = new
            .iter()
            .flat_map(|n| n.1.programs.iter().map(|p| p.as_ref().clone()))
            .collect();
        let mut kernels = self.opened.device.load(&programs, progress)?.into_iter();
        for ((key, function), compiled) in new {
            let kernels = kernels.by_ref().take(compiled.programs.len()).collect();
            self.ready.insert(
                key,
                Arc::new(Ready {
                    function,
                    compiled,
                    kernels,
                }),
            );
        }
        Ok(keys.iter().map(|k| self.ready[k].clone()).collect())
    }
    /// Loads the kernels that repack rows from their file layout into another, in one batch.
    ///
    /// Each request is an encoding, the layout to produce, and the elements per row (columns).
    pub fn prepare_packers(
        &mut self,
        wanted: &[(EncodingRef, Layout, usize)],
    ) -> Result<(), Error> {
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
            programs.push(prepack(
                &PackedRows {
                    encoding: e,
                    packing: &packing,
                    layout,
                    columns,
                },
                target,
                dialect,
            ));
            new.push(key);
        }
        let kernels = self.opened.device.load(&programs, &|_, _| ())?;
        self.packers.extend(new.into_iter().zip(kernels));
        Ok(())
    }
    /// Returns the packer for one kind, which [`Jit::prepare_packers`] must have prepared.
    pub fn packer(
        &self,
        (e, layout, columns): (EncodingRef, Layout, usize),
    ) -> Result<Packer, Error> {
        let kernel = self
            .packers
            .get(&(e, layout, columns))
            .ok_or_else(|| Error::invalid(e.name, "was not prepared"))?;
        Ok(Packer {
            device: self.device().clone(),
            kernel: kernel.clone(),
            lanes: layout.lanes(),
        })
    }
    /// Bytes of arena needed for the intermediates of any one of these functions.
    pub fn arena(functions: &[Arc<Ready>]) -> usize {
        functions
            .iter()
            .map(|f| f.compiled.arena)
            .max()
            .unwrap_or(0)
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

/// Repacks rows of a weight from their file layout into another.
pub struct Packer {
    device: Arc<dyn Device>,
    kernel: Arc<dyn Kernel>,
    lanes: i64,
}

impl Packer {
    /// Packs `rows` rows and waits for the result.
    pub fn pack(&self, file: &Buffer, packed: &Buffer, rows: usize) -> Result<(), Error> {
        self.start(file, packed, rows)?.wait()
    }
    /// Starts packing and returns a step to wait for; `file` must not change until it ends.
    pub fn start(
        &self,
        file: &Buffer,
        packed: &Buffer,
        rows: usize,
    ) -> Result<Box<dyn Replay>, Error> {
        let mut step = self.device.capture(self.launch(file, packed))?;
        step.start(&self.groups(rows))?;
        Ok(step)
    }
    /// Packs the rows on the calling thread; other threads may do the same concurrently.
    pub fn pack_alone(&self, file: &Buffer, packed: &Buffer, rows: usize) -> Result<(), Error> {
        self.device
            .capture_alone(self.launch(file, packed))?
            .replay(&self.groups(rows))
    }
    fn launch(&self, file: &Buffer, packed: &Buffer) -> Vec<Launch> {
        let buffer = |slot: u32| {
            if slot == 0 {
                file.clone()
            } else {
                packed.clone()
            }
        };
        let buffers = self
            .kernel
            .program()
            .params
            .iter()
            .map(|p| buffer(p.slot))
            .collect();
        vec![Launch {
            kernel: self.kernel.clone(),
            buffers,
            level: 0,
        }]
    }
    fn groups(&self, rows: usize) -> [(&'static str, i64); 1] {
        [("groups", rows as i64 / self.lanes)]
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
    let cores = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(all.len());
    let mut done = std::thread::scope(|scope| {
        let others: Vec<_> = (1..cores).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        done.extend(
            others
                .into_iter()
                .flat_map(|t| t.join().expect("a function that is compiled")),
        );
        done
    });
    done.sort_unstable_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}
