//! Compiled functions of an engine and the graphs captured from them.

use super::graph_key::GraphKey;
use crate::arch::Functions;
use crate::error::{Error, Progress};
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
    /// The copy of a row of recurrent states.
    CopyState,
}

/// A captured graph and its launches.
pub(super) struct Captured {
    pub replay: Box<dyn Replay>,
    /// The function and program of every launch, in order.
    pub launches: Vec<(Arc<Ready>, usize)>,
}

/// The compiled functions, their arena, and the captured graphs.
pub(super) struct Graphs {
    pub jit: Jit,
    pub functions: Functions,
    arena: Buffer,
    captured: FxHashMap<CaptureKey, Captured>,
}

impl Graphs {
    /// Allocates an arena of `arena` bytes for intermediates.
    pub fn new(jit: Jit, functions: Functions, arena: usize) -> Result<Graphs, Error> {
        let arena = jit.device().alloc(arena, Memory::State)?;
        Ok(Graphs {
            jit,
            functions,
            arena,
            captured: FxHashMap::default(),
        })
    }
    pub fn device(&self) -> &Arc<dyn Device> {
        self.jit.device()
    }
    pub fn arena_bytes(&self) -> usize {
        self.arena.len()
    }
    /// Compiles functions in one batch and makes the arena large enough for them.
    pub fn compile(
        &mut self,
        functions: &[Arc<Function>],
        progress: &dyn Fn(Progress),
    ) -> Result<Vec<Arc<Ready>>, Error> {
        let ready = self.jit.prepare(functions, &|done, total| {
            progress(Progress::Compiling(done, total))
        })?;
        let need = Jit::arena(&ready);
        if need > self.arena.len() {
            // Captured graphs are bound to the old arena and are captured again at their next use.
            // None of them runs here: every caller has waited.
            self.captured.clear();
            self.arena = self.device().alloc(need, Memory::State)?;
        }
        Ok(ready)
    }
    /// Captures these calls as one graph.
    pub fn capture(&mut self, key: CaptureKey, calls: &[Call]) -> Result<(), Error> {
        let replay = self.jit.capture(calls, &self.arena)?;
        let programs = |c: &Call| c.function.compiled.programs.len();
        let launches = calls
            .iter()
            .flat_map(|c| (0..programs(c)).map(|i| (c.function.clone(), i)))
            .collect();
        self.captured.insert(key, Captured { replay, launches });
        Ok(())
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
    /// Returns a captured step of that graph, with any inputs and sampling.
    pub fn captured_step(&self, graph: &GraphKey) -> Option<&Captured> {
        let of = |key: &CaptureKey| matches!(key, CaptureKey::Step(step) if step.graph == *graph);
        self.captured
            .iter()
            .find(|(key, _)| of(key))
            .map(|found| found.1)
    }
}
