//! Copies a kernel into a separate graph, and determines its arguments.

use super::dialect::Signature;
use crate::apply::scratch::{place, place_behind, reserved, scratch};
use crate::ir::nest::{adds, global_ranges};
use crate::lower::legalise::types::expression_in_words;
use crate::lower::{Accesses, Code, KernelCode, accesses};
use crate::schedule::Launch;
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::program::{Access, Extent, Param, When};
use gristmill_uop::spec::{self, Level};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op};
use std::sync::Arc;

/// What code generation knows about the slots of a function.
pub struct Slots<'a> {
    pub function: &'a Function,
    /// Slots with interleaved rows in memory.
    pub streams: Vec<u32>,
    /// Returns how much of a slot's buffer a kernel may touch.
    pub extent: &'a dyn Fn(u32) -> Extent,
}

/// Returns the arguments of a kernel on its machine, and the total number of its workgroups.
pub fn sized(
    g: &mut Graph,
    bodies: &[Vec<Id>],
    launch: &Launch,
    function: &Function,
    target: &Target,
) -> (Signature, Id) {
    let mut signature = signature(g, bodies, function);
    let when: Vec<When> = launch.bodies.iter().map(|b| b.when).collect();
    signature.scratch_bytes = reserved(signature.scratch_bytes, &when, target);
    let zero = g.int(0);
    let groups = signature.groups.iter().fold(zero, |sum, &n| g.add(sum, n));
    (signature, groups)
}

impl Signature {
    /// Reassigns the offsets of stages after lowering, which may have replaced some by smaller
    /// ones.
    pub(super) fn place_stages(&mut self, g: &Graph, bodies: &[Code]) {
        let locals: Vec<Vec<Id>> = bodies.iter().map(|b| b.locals.clone()).collect();
        if locals
            .iter()
            .flatten()
            .any(|l| !self.scratch.iter().any(|s| s.0 == *l))
        {
            self.scratch.clear();
            self.scratch_bytes = place(g, &locals, &mut self.scratch);
        }
    }
    /// Returns the parameters, and sets into how many device buffers each is split.
    pub(super) fn cut(&mut self, slots: &Slots, target: &Target) -> Vec<Param> {
        let param = |p: &(u32, Access, Id)| Param {
            slot: p.0,
            access: p.1,
            extent: (slots.extent)(p.0),
        };
        let params: Vec<Param> = self.params.iter().map(param).collect();
        self.piece = target.machine.max_binding_chunk();
        self.stage_words = target.machine.stage_words;
        self.pieces = params.iter().map(|p| p.pieces(self.piece)).collect();
        params
    }
    /// Legalises the workgroup counts to 32-bit words where the machine requires it.
    pub(super) fn in_words(&mut self, g: &mut Graph, target: &Target) {
        if target.machine.words_alone {
            self.groups
                .iter_mut()
                .for_each(|count| *count = expression_in_words(g, *count));
        }
    }
    /// Assigns offsets to the buffers that lowering has added, next to the stages of their body.
    /// These are ring buffers of the software pipeline, and stages of cross-thread reductions.
    pub(super) fn add_rings(&mut self, g: &Graph, code: &KernelCode, target: &Target) {
        let locals: Vec<Vec<Id>> = code.bodies.iter().map(|b| b.locals.clone()).collect();
        let bytes = place(g, &locals, &mut self.scratch);
        self.scratch_bytes = self.scratch_bytes.max(bytes);
        if target.machine.least_bytes > 1 {
            self.place_by_access(g, code, &locals);
        }
    }
    /// Reassigns the offsets of all stages by class: stages written in parts of words, then stages
    /// of whole words, then stages with matrix accesses.
    ///
    /// If this order takes more memory than before, because bodies with different stages share
    /// addresses, stages of the first two classes are placed together.
    fn place_by_access(&mut self, g: &Graph, code: &KernelCode, locals: &[Vec<Id>]) {
        let accesses = accesses(g, code.bodies.iter().flat_map(|body| &body.statements));
        let classes: [&dyn Fn(&Accesses) -> bool; 3] = [
            &|a| a.matrices.is_none() && a.parts,
            &|a| a.matrices.is_none() && !a.parts,
            &|a| a.matrices.is_some(),
        ];
        let whole: &dyn Fn(&Accesses) -> bool = &|a| a.matrices.is_none();
        let mut bytes = 0;
        for classes in [classes, [whole, &|_| false, classes[2]]] {
            let (mut scratch, mut ends, mut end) = (Vec::new(), [0; 3], 0);
            for (is_it, at) in classes.into_iter().zip(&mut ends) {
                let of_class = |body: &Vec<Id>| {
                    body.iter()
                        .copied()
                        .filter(|stage| is_it(&accesses.for_buffer(*stage)))
                        .collect()
                };
                let all: Vec<Vec<Id>> = locals.iter().map(of_class).collect();
                end = place_behind(g, &all, &mut scratch, end).max(end);
                *at = end;
            }
            (self.scratch, self.stage_ends, bytes) = (scratch, [ends[0], ends[1]], end);
            if end <= self.scratch_bytes {
                break;
            }
        }
        self.scratch_bytes = self.scratch_bytes.max(bytes);
        self.lay_out(g, &accesses);
    }
}

/// Returns the arguments of a kernel with these bodies.
fn signature(g: &mut Graph, bodies: &[Vec<Id>], function: &Function) -> Signature {
    let mut params: Vec<(u32, Access, Id)> = Vec::new();
    let mut vars: Vec<(Arc<str>, Id)> = Vec::new();
    let mut groups = Vec::new();
    for nests in bodies {
        for n in g.toposort(nests) {
            let node = &g[n];
            match (&node.op, &node.arg) {
                (Op::Param, Arg::Param(slot) | Arg::Packed(slot, _))
                    if !params.iter().any(|p| p.0 == *slot) =>
                {
                    params.push((*slot, Access::Read, n));
                }
                (Op::Var, Arg::Var(name, ..)) if !vars.iter().any(|v| v.0 == *name) => {
                    vars.push((name.clone(), n))
                }
                _ => {}
            }
        }
        for &n in nests {
            let buffer = g[n].src[0];
            if let Arg::Param(slot) | Arg::Packed(slot, _) = g[buffer].arg {
                let state = function
                    .slots
                    .get(slot as usize)
                    .is_some_and(|s| s.kind == SlotKind::State);
                for p in params.iter_mut().filter(|p| p.0 == slot) {
                    p.1 = if state || adds(g, n) {
                        Access::ReadWrite
                    } else {
                        Access::Write
                    };
                }
            }
        }
        let one = g.int(1);
        let bounds: Vec<Id> = global_ranges(g, nests)
            .iter()
            .map(|&r| g[r].src[0])
            .collect();
        groups.push(bounds.iter().fold(one, |p, &b| g.mul(p, b)));
    }
    let (scratch, scratch_bytes) = scratch(g, bodies);
    Signature {
        params,
        pieces: vec![],
        piece: 0,
        vars,
        groups,
        scratch,
        scratch_bytes,
        elements: vec![],
        arrays: vec![],
        stages: vec![],
        stage_ends: [0; 2],
        stage_words: 1,
    }
}

/// Checks between passes, in tests and debug builds, that the graph conforms to its level. Panics
/// on a violation, which is a bug of the preceding pass.
pub fn verify(g: &Graph, root: Id, level: Level, after: &str) {
    if cfg!(debug_assertions)
        && let Err(e) = spec::check(g, root, level)
    {
        panic!("after {after}: {e}");
    }
}

/// Returns the 64-bit FNV-1a hash that names kernels; the on-disk store uses a cryptographic hash.
pub fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ b as u64).wrapping_mul(0x100_0000_01b3)
    })
}
