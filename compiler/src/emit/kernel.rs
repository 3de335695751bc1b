//! A kernel in a graph of its own, and what it is called with.

use super::dialect::Signature;
use crate::lower::KernelCode;
use crate::nest::global_ranges;
use crate::schedule::Launch;
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::program::{Access, Extent, When};
use gristmill_uop::spec::{self, Level};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;
use std::sync::Arc;

/// What is known of the slots of a function's kernels.
pub struct Slots<'a> {
    pub function: &'a Function,
    /// Those whose rows are interleaved.
    pub streams: Vec<u32>,
    /// How much of a slot's buffer a kernel may touch.
    pub extent: &'a dyn Fn(u32) -> Extent,
}

/// A kernel in a graph of its own: for `interp`, for the text form, and to be lowered.
pub struct Kernel {
    pub graph: Graph,
    pub root: Id,
    /// Nests of each body.
    pub bodies: Vec<Vec<Id>>,
    pub when: Vec<When>,
}

impl Kernel {
    /// Of these nests of `g`, and what holds for the workgroups of each body.
    pub fn of(g: &Graph, bodies: &[&[Id]], when: &[When]) -> Kernel {
        let mut own = Graph::new();
        let mut map = FxHashMap::default();
        let bodies: Vec<Vec<Id>> =
            bodies.iter().map(|nests| nests.iter().map(|&n| strip(g, &mut own, n, &mut map)).collect()).collect();
        let body_nodes: Sources = bodies
            .iter()
            .map(|nests| {
                let src: Sources = nests.iter().copied().collect();
                let dtype = own[src[0]].dtype;
                own.intern(Node { op: Op::Body, dtype, src, arg: Arg::None })
            })
            .collect();
        let mut stripped = |x: Option<Id>| x.map(|x| strip(g, &mut own, x, &mut map));
        let when = when.iter().map(|w| When { skip: stripped(w.skip), early: stripped(w.early), ..*w }).collect();
        let dtype = own[body_nodes[0]].dtype;
        let root = own.intern(Node { op: Op::Kernel, dtype, src: body_nodes, arg: Arg::None });
        Kernel { graph: own, root, bodies, when }
    }
}

/// The arguments of a kernel on its machine, and the number of its workgroups.
pub fn sized(
    g: &mut Graph,
    bodies: &[Vec<Id>],
    launch: &Launch,
    function: &Function,
    target: &Target,
) -> (Signature, Id) {
    let mut signature = signature(g, bodies, function);
    // More than half of what there is leaves no room for another.
    if launch.bodies.iter().any(|b| b.when.alone) {
        signature.scratch_bytes = signature.scratch_bytes.max((target.machine.shared_per_workgroup / 2 + 64) & !63);
    }
    let zero = g.int(0);
    let groups = signature.groups.iter().fold(zero, |sum, &n| g.add(sum, n));
    (signature, groups)
}

impl Signature {
    /// Room for what is copied ahead: bodies, of which a workgroup runs one, have theirs at the same place.
    pub(super) fn add_rings(&mut self, g: &Graph, code: &KernelCode) {
        let begin = self.scratch_bytes;
        for body in &code.bodies {
            // Rings of equal number and size are one node in every body.
            let there = |&l: &&Id| self.scratch.iter().any(|s| s.0 == *l);
            let (old, new): (Vec<Id>, Vec<Id>) = body.locals.iter().partition(there);
            let ends = self.scratch.iter().filter(|s| old.contains(&s.0)).map(|s| s.1 + bytes_of(g, s.0));
            let mut end = ends.max().unwrap_or(0).max(begin);
            for ring in new {
                self.scratch.push((ring, end));
                end += bytes_of(g, ring);
            }
            self.scratch_bytes = self.scratch_bytes.max(end);
        }
    }
}

/// Bytes of a workgroup buffer, to where the next may begin.
fn bytes_of(g: &Graph, local: Id) -> usize {
    let elements = g.int_value(g[local].src[0]).unwrap_or(0) as usize;
    (elements * g[local].dtype.scalar.bytes()).next_multiple_of(64)
}

/// A nest in a graph of its own, PARAMs without their dims.
fn strip(from: &Graph, to: &mut Graph, nest: Id, map: &mut FxHashMap<Id, Id>) -> Id {
    for id in from.toposort(&[nest]) {
        if map.contains_key(&id) {
            continue;
        }
        let node = &from[id];
        let src: Sources = if node.op == Op::Param { smallvec![] } else { node.src.iter().map(|s| map[s]).collect() };
        let new = to.intern(Node { op: node.op, dtype: node.dtype, src, arg: node.arg.clone() });
        map.insert(id, new);
    }
    map[&nest]
}

/// The arguments of a kernel of these bodies.
fn signature(g: &mut Graph, bodies: &[Vec<Id>], function: &Function) -> Signature {
    let mut params: Vec<(u32, Access, Id)> = Vec::new();
    let mut vars: Vec<(Arc<str>, Id)> = Vec::new();
    let mut scratch: Vec<(Id, usize)> = Vec::new();
    let mut scratch_bytes = 0;
    let mut groups = Vec::new();
    for nests in bodies {
        let order = g.toposort(nests);
        // Stages of equal number and size are one node in every body: what this body adds comes after those it shares.
        let shared = scratch.iter().filter(|s| order.contains(&s.0)).map(|s| s.1 + bytes_of(g, s.0));
        let mut size = shared.max().unwrap_or(0);
        for &n in &order {
            let node = &g[n];
            match (&node.op, &node.arg) {
                (Op::Param, Arg::Param(slot) | Arg::Packed(slot, _)) if !params.iter().any(|p| p.0 == *slot) => {
                    params.push((*slot, Access::Read, n));
                }
                (Op::Var, Arg::Var(name, ..)) if !vars.iter().any(|v| v.0 == *name) => vars.push((name.clone(), n)),
                (Op::Local, _) if !scratch.iter().any(|s| s.0 == n) => {
                    scratch.push((n, size));
                    size += bytes_of(g, n);
                }
                _ => {}
            }
        }
        scratch_bytes = scratch_bytes.max(size);
        for &n in nests {
            let buffer = g[n].src[0];
            if let Arg::Param(slot) | Arg::Packed(slot, _) = g[buffer].arg {
                let state = function.slots.get(slot as usize).is_some_and(|s| s.kind == SlotKind::State);
                for p in params.iter_mut().filter(|p| p.0 == slot) {
                    p.1 = if state { Access::ReadWrite } else { Access::Write };
                }
            }
        }
        let one = g.int(1);
        let bounds: Vec<Id> = global_ranges(g, nests).iter().map(|&r| g[r].src[0]).collect();
        groups.push(bounds.iter().fold(one, |p, &b| g.mul(p, b)));
    }
    Signature { params, vars, groups, scratch, scratch_bytes }
}

/// Between passes, in tests and debug builds: the graph keeps to what its level allows. A failure is a bug of the pass before.
pub fn verify(g: &Graph, root: Id, level: Level, after: &str) {
    if cfg!(debug_assertions)
        && let Err(e) = spec::check(g, root, level)
    {
        panic!("after {after}: {e}");
    }
}

/// FNV-1a, 64 bits: kernels are named by it; the store on disk has a real hash.
pub fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ b as u64).wrapping_mul(0x100_0000_01b3))
}
