//! Copies a kernel into a separate graph, and determines its arguments.

use super::dialect::Signature;
use crate::ir::mma::fragment::alignment;
use crate::ir::nest::{adds, global_ranges};
use crate::lower::legalise::types::expression_in_words;
use crate::lower::{Accesses, Code, KernelCode, accesses, bytes_of};
use crate::schedule::Launch;
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::program::{Access, Extent, Param, When};
use gristmill_uop::spec::{self, Level};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;
use std::sync::Arc;

/// What code generation knows about the slots of a function.
pub struct Slots<'a> {
    pub function: &'a Function,
    /// Slots with interleaved rows in memory.
    pub streams: Vec<u32>,
    /// Returns how much of a slot's buffer a kernel may touch.
    pub extent: &'a dyn Fn(u32) -> Extent,
}

/// A kernel in a graph of its own: for the interpreter, for the text form, and for lowering.
pub struct Kernel {
    pub graph: Graph,
    pub root: Id,
    /// Nests of each body.
    pub bodies: Vec<Vec<Id>>,
    pub when: Vec<When>,
}

impl Kernel {
    /// Copies the nests of each body from `g`, with the conditions (`when`) of
    /// each body's workgroups.
    pub fn new(g: &Graph, bodies: &[&[Id]], when: &[When]) -> Kernel {
        let mut own = Graph::new();
        let mut map = FxHashMap::default();
        let bodies: Vec<Vec<Id>> = bodies
            .iter()
            .map(|nests| {
                nests
                    .iter()
                    .map(|&n| strip(g, &mut own, n, &mut map))
                    .collect()
            })
            .collect();
        let body_nodes: Sources = bodies
            .iter()
            .map(|nests| {
                let src: Sources = nests.iter().copied().collect();
                let dtype = own[src[0]].dtype;
                own.intern(Node {
                    op: Op::Body,
                    dtype,
                    src,
                    arg: Arg::None,
                })
            })
            .collect();
        let mut stripped = |x: Option<Id>| x.map(|x| strip(g, &mut own, x, &mut map));
        let when = when
            .iter()
            .map(|w| When {
                skip: stripped(w.skip),
                prologue: stripped(w.prologue),
                ..*w
            })
            .collect();
        let dtype = own[body_nodes[0]].dtype;
        let root = own.intern(Node {
            op: Op::Kernel,
            dtype,
            src: body_nodes,
            arg: Arg::None,
        });
        Kernel {
            graph: own,
            root,
            bodies,
            when,
        }
    }
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
    // An exclusive kernel reserves more than half of the shared memory, which leaves no room for a
    // second workgroup.
    if launch.bodies.iter().any(|b| b.when.exclusive) {
        signature.scratch_bytes = signature
            .scratch_bytes
            .max((target.machine.shared_per_workgroup / 2 + 64) & !63);
    }
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

/// Copies a nest into another graph, with the dimensions of its parameters removed.
fn strip(from: &Graph, to: &mut Graph, nest: Id, map: &mut FxHashMap<Id, Id>) -> Id {
    for id in from.toposort(&[nest]) {
        if map.contains_key(&id) {
            continue;
        }
        let node = &from[id];
        let src: Sources = if node.op == Op::Param {
            smallvec![]
        } else {
            node.src.iter().map(|s| map[s]).collect()
        };
        let new = to.intern(Node {
            op: node.op,
            dtype: node.dtype,
            src,
            arg: node.arg.clone(),
        });
        map.insert(id, new);
    }
    map[&nest]
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

/// Returns the offsets of the bodies' stages and the total bytes.
fn scratch(g: &Graph, bodies: &[Vec<Id>]) -> (Vec<(Id, usize)>, usize) {
    let is_stage = |&n: &Id| g[n].op == Op::Local;
    let stages: Vec<Vec<Id>> = bodies
        .iter()
        .map(|nests| g.toposort(nests).into_iter().filter(is_stage).collect())
        .collect();
    let mut placed = Vec::new();
    let bytes = place(g, &stages, &mut placed);
    (placed, bytes)
}

/// Assigns an offset to each buffer without one and returns the total bytes. A buffer starts at a
/// cache line, or at the alignment of its swizzle.
///
/// It overlaps no buffer that occurs with it in any body: buffers of equal number and size are one
/// node, which may have different neighbours in each body.
fn place(g: &Graph, bodies: &[Vec<Id>], placed: &mut Vec<(Id, usize)>) -> usize {
    place_behind(g, bodies, placed, 0)
}

/// Same as [`place`], with all new buffers at or after byte `from`.
fn place_behind(
    g: &Graph,
    bodies: &[Vec<Id>],
    placed: &mut Vec<(Id, usize)>,
    from: usize,
) -> usize {
    let beside = |a: Id, b: Id| {
        bodies
            .iter()
            .any(|body| body.contains(&a) && body.contains(&b))
    };
    for &n in bodies.iter().flatten() {
        if placed.iter().any(|p| p.0 == n) {
            continue;
        }
        let taken = placed.iter().filter(|p| beside(p.0, n));
        let mut taken: Vec<(usize, usize)> =
            taken.map(|&(m, at)| (at, at + bytes_of(g, m))).collect();
        taken.sort_unstable();
        let size = bytes_of(g, n);
        let whole = alignment(g, n) as usize;
        let free = |at: usize, &(begin, end): &(usize, usize)| {
            if at + size <= begin {
                at
            } else {
                at.max(end).next_multiple_of(whole)
            }
        };
        placed.push((n, taken.iter().fold(from.next_multiple_of(whole), free)));
    }
    placed
        .iter()
        .map(|&(n, at)| at + bytes_of(g, n))
        .max()
        .unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::Scalar;

    /// Returns a body that fills stages of these (number, size in words) pairs.
    fn body(g: &mut Graph, stages: &[(i64, i64)]) -> Vec<Id> {
        let zero = g.int(0);
        let fill = |&(number, words): &(i64, i64)| {
            let (words, one) = (g.int(words), g.constant(Scalar::F32, 1.0));
            let (dtype, arg) = (Scalar::F32.one(), Arg::Int(number));
            let stage = g.intern(Node {
                op: Op::Local,
                dtype,
                src: smallvec![words],
                arg,
            });
            g.store(stage, zero, one, &[])
        };
        stages.iter().map(fill).collect()
    }

    #[test]
    fn stages_of_one_body_lie_apart() {
        let mut g = Graph::new();
        // The third body shares its second stage with the first body, and its first stage with the
        // second.
        let shared: &[(i64, i64)] = &[(0, 64), (1, 256), (2, 64)];
        let all = [
            &[(0, 16), (1, 256)],
            &[(0, 64), (2, 64)],
            shared,
            &[(3, 32)],
        ];
        let bodies: Vec<Vec<Id>> = all.iter().map(|stages| body(&mut g, stages)).collect();
        let (placed, bytes) = scratch(&g, &bodies);
        let span = |nest: &Id| {
            let stage = g[*nest].src[0];
            let begin = placed.iter().find(|p| p.0 == stage).expect("a place").1;
            begin..begin + 4 * g.int_value(g[stage].src[0]).expect("a size") as usize
        };
        for nests in &bodies {
            for (i, a) in nests.iter().enumerate() {
                let a = span(a);
                assert!(a.end <= bytes && a.start % 64 == 0);
                assert!(
                    nests[..i]
                        .iter()
                        .map(span)
                        .all(|b| a.end <= b.start || b.end <= a.start),
                    "{placed:?}"
                );
            }
        }
        assert_eq!(span(&bodies[3][0]), 0..128, "it is beside none");
    }
}
