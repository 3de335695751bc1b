//! Compiled functions of an engine and the graphs captured from them.

use super::graph_key::GraphKey;
use crate::arch::Functions;
use crate::error::{Error, Progress};
use crate::placement::Splitter;
use crate::sampling::CandidateSet;
use gristmill_runtime::{Buffer, Device, Memory, Replay};
use gristmill_tensor::jit::{Call, Jit, Ready};
use gristmill_uop::function::Function;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Values of a step's variables, by name.
pub(super) type Variables = Vec<(&'static str, i64)>;

/// Source of a step's tokens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Tokens {
    /// Written by the host.
    Given,
    /// Chosen by the previous step for its only row.
    Chosen,
    /// Gathered by a function from ids given by the host and tokens chosen by the previous step.
    Gathered,
}

/// Key of a captured step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct StepKey {
    pub graph: GraphKey,
    /// Input set that it reads, of the two (double buffer).
    pub set: usize,
    pub tokens: Tokens,
    /// The row of recurrent states that a contiguous step is bound to.
    pub state_row: u32,
    /// Candidate set to choose the next tokens from; `None` if the step chooses none.
    pub among: Option<CandidateSet>,
}

/// Key of a captured graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum CaptureKey {
    Step(StepKey),
    /// The computation of sampling candidates of at most this many rows of logits.
    Candidates(usize),
    /// The copy of a row of recurrent states on a device.
    CopyState(usize),
}

/// A captured graph and its launches.
pub(super) struct Captured {
    pub replay: Box<dyn Replay>,
    /// The function and program of every launch, in order.
    pub launches: Vec<(Arc<Ready>, usize)>,
    /// Number of those that a step passes over: variants for fewer experts than are missed.
    pub passed: usize,
}

/// The compiler of one device, and the arena that its functions share.
pub(super) struct GraphUnit {
    pub jit: Jit,
    arena: Buffer,
}

impl GraphUnit {
    /// Allocates an arena of `arena` bytes for intermediates.
    pub fn new(jit: Jit, arena: usize) -> Result<GraphUnit, Error> {
        let arena = jit.device().alloc(arena, Memory::State)?;
        Ok(GraphUnit { jit, arena })
    }
}

/// A function to compile, and the index of its device.
pub(super) type PlacedFunction = (usize, Arc<Function>);

/// A call, and the index of its device.
pub(super) type PlacedCall = (usize, Call);

/// The compiled functions, their arenas, and the captured graphs.
pub(super) struct Graphs {
    /// By device; the first is the main device's.
    pub units: Vec<GraphUnit>,
    pub functions: Functions,
    pub splitter: Splitter,
    captured: FxHashMap<CaptureKey, Captured>,
    /// Number of graphs that were captured so far.
    pub captures: u64,
}

impl Graphs {
    /// Creates a set without captured graphs.
    pub fn new(units: Vec<GraphUnit>, functions: Functions, splitter: Splitter) -> Graphs {
        Graphs {
            units,
            functions,
            splitter,
            captured: FxHashMap::default(),
            captures: 0,
        }
    }
    /// Returns the compiler of the main device.
    pub fn jit(&self) -> &Jit {
        &self.units[0].jit
    }
    /// Returns the main device.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.on(0)
    }
    /// Returns a device by its index.
    pub fn on(&self, device: usize) -> &Arc<dyn Device> {
        self.units[device].jit.device()
    }
    pub fn arena_bytes(&self) -> usize {
        self.units.iter().map(|unit| unit.arena.len()).sum()
    }
    /// Compiles functions, those of a device in one batch, and makes the arenas large enough for
    /// them.
    pub fn compile(
        &mut self,
        functions: &[PlacedFunction],
        progress: &dyn Fn(Progress),
    ) -> Result<Vec<Arc<Ready>>, Error> {
        let mut all: Vec<Option<Arc<Ready>>> = vec![None; functions.len()];
        for (device, unit) in self.units.iter_mut().enumerate() {
            let own = (0..functions.len()).filter(|&i| functions[i].0 == device);
            let own: Vec<usize> = own.collect();
            let wanted: Vec<_> = own.iter().map(|&i| functions[i].1.clone()).collect();
            let ready = unit.jit.prepare(&wanted, &|done, total| {
                progress(Progress::Compiling(done, total))
            })?;
            let need = Jit::arena(&ready);
            if need > unit.arena.len() {
                // Captured graphs are bound to the old arena and are captured again at their next
                // use. None of them runs here: every caller has waited.
                self.captured.clear();
                unit.arena = unit.jit.device().alloc(need, Memory::State)?;
            }
            for (i, ready) in own.into_iter().zip(ready) {
                all[i] = Some(ready);
            }
        }
        Ok(all.into_iter().flatten().collect())
    }
    /// Captures these calls of one device as a graph.
    pub fn capture_on(&self, device: usize, calls: &[Call]) -> Result<Box<dyn Replay>, Error> {
        let unit = &self.units[device];
        Ok(unit.jit.capture(calls, &unit.arena)?)
    }
    /// Captures these calls of one device as a graph and keeps it.
    pub fn capture(&mut self, key: CaptureKey, device: usize, calls: &[Call]) -> Result<(), Error> {
        let replay = self.capture_on(device, calls)?;
        self.keep(key, replay, calls, 0);
        Ok(())
    }
    /// Keeps the captured graph of these calls, of which a step passes over `passed` launches.
    pub fn keep<'c>(
        &mut self,
        key: CaptureKey,
        replay: Box<dyn Replay>,
        calls: impl IntoIterator<Item = &'c Call>,
        passed: usize,
    ) {
        let programs = |c: &Call| c.function.compiled.programs.len();
        let launches = calls
            .into_iter()
            .flat_map(|c| (0..programs(c)).map(|i| (c.function.clone(), i)))
            .collect();
        let captured = Captured {
            replay,
            launches,
            passed,
        };
        self.captured.insert(key, captured);
        self.captures += 1;
    }
    pub fn has(&self, key: &CaptureKey) -> bool {
        self.captured.contains_key(key)
    }
    /// Returns the captured graph of a key; panics if there is none.
    pub fn prepared(&mut self, key: &CaptureKey) -> &mut Captured {
        match self.captured.get_mut(key) {
            Some(captured) => captured,
            None => unreachable!("{key:?} was captured"),
        }
    }
    /// Returns a captured step of that graph with any inputs: one that samples, or one that does
    /// not, or the other if there is none.
    pub fn captured_step(&self, graph: &GraphKey, samples: bool) -> Option<&Captured> {
        let of = self
            .captured
            .iter()
            .filter_map(|(key, captured)| match key {
                CaptureKey::Step(step) if step.graph == *graph => Some((step, captured)),
                _ => None,
            });
        of.min_by_key(|(step, _)| step.among.is_some() != samples)
            .map(|found| found.1)
    }
}
