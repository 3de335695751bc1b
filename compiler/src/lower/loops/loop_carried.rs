//! Loop-carried reductions of a loop that nests share (`loop_fusion.rs`).
//!
//! A stage that holds a maximum or a sum over the loop is updated in each iteration, from its
//! previous value and the terms of the iteration. It has two slots (a double buffer): one is read
//! while the other is written.
//!
//! Terms that are multiples of 2^-m, where m is the maximum over the whole loop, are accumulated
//! before m is known (online softmax: Milakov and Gimelshein, 2018; FlashAttention, Dao et al.,
//! 2022). They use the running maximum, and the sum (`Op::Rescaled`) is multiplied by 2^(before -
//! now) in each iteration.

use crate::ir::nest::{Nest, identity, replaced};
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, ReduceOp, Scalar, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// Slots of a stage that a loop carries.
const SLOTS: i64 = 2;

/// Gives slots to the stages that a loop carries.
pub fn loop_carried(g: &mut Graph, nests: Vec<Id>) -> Vec<Id> {
    let all: FxHashMap<Id, Carried> = nests
        .iter()
        .filter_map(|&nest| Carried::from_nest(g, nest))
        .collect();
    if all.is_empty() {
        return nests;
    }
    let slots = Slots { all };
    nests.into_iter().map(|nest| slots.nest(g, nest)).collect()
}

/// Slot of a carried stage, relative to an iteration: the one written by the previous iteration, or
/// the iteration's own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Slot {
    Before,
    Own,
}

impl Slot {
    /// Returns the slot of an offset. Its number is the loop's index, or that plus
    /// one, modulo the slots.
    pub fn from_offset(g: &Graph, offset: Id, range: Id) -> Option<Slot> {
        let number = |n: Id| match g[n].op {
            Op::Mod if g.int_value(g[n].src[1]) == Some(SLOTS) => Some(g.linear(g[n].src[0])),
            _ => None,
        };
        g.toposort(&[offset])
            .into_iter()
            .filter_map(number)
            .find_map(|at| match (&at.terms[..], at.constant) {
                (&[(r, 1)], 0) if r == range => Some(Slot::Before),
                (&[(r, 1)], 1) if r == range => Some(Slot::Own),
                _ => None,
            })
    }
    /// Returns the same slot as the next iteration sees it. With two slots, the previous slot
    /// becomes that iteration's own.
    pub fn passed(self) -> Slot {
        match self {
            Slot::Own => Slot::Before,
            Slot::Before => Slot::Own,
        }
    }
}

/// A stage, and the loop that carries it.
#[derive(Clone, Copy)]
struct Carried {
    stage: Id,
    /// Elements of one slot.
    size: i64,
    range: Id,
}

impl Carried {
    /// Returns the stage that a nest fills by a reduction over a shared loop,
    /// with its carried form.
    fn from_nest(g: &mut Graph, nest: Id) -> Option<(Id, Carried)> {
        let Nest { buffer, value, .. } = Nest::from_store(g, nest);
        if g[buffer].op != Op::Local {
            return None;
        }
        let range = g
            .toposort(&[value])
            .into_iter()
            .find_map(|n| shared_range(g, n))?;
        let size = g.max_of(g[buffer].src[0]);
        let (dtype, arg, elements) = (g[buffer].dtype, g[buffer].arg.clone(), g.int(SLOTS * size));
        let stage = g.intern(Node {
            op: Op::Local,
            dtype,
            src: smallvec![elements],
            arg,
        });
        Some((buffer, Carried { stage, size, range }))
    }
    /// Returns the offset within slot `number % SLOTS`.
    fn at(&self, g: &mut Graph, offset: Id, number: Id) -> Id {
        let (slots, size) = (g.int(SLOTS), g.int(self.size));
        let slot = g.modulo(number, slots);
        let begin = g.mul(slot, size);
        g.add(offset, begin)
    }
    /// Returns the offset within the slot that an iteration writes.
    fn own(&self, g: &mut Graph, offset: Id) -> Id {
        let one = g.int(1);
        let next = g.add(self.range, one);
        self.at(g, offset, next)
    }
    /// Returns the value left by the previous iteration; the reduction's identity in the first.
    fn carried_value(&self, g: &mut Graph, offset: Id, op: ReduceOp) -> Id {
        let at = self.at(g, offset, self.range);
        let dtype = g[self.stage].dtype;
        let (left, none, one) = (
            g.load(self.stage, at, dtype),
            identity(g, op, dtype),
            g.int(1),
        );
        let first = g.lt(self.range, one);
        g.select(first, none, left)
    }
}

/// Returns the loop that nests share, if it is among the ranges of a reduction.
fn shared_range(g: &Graph, reduction: Id) -> Option<Id> {
    let n = &g[reduction];
    let is_shared = |r: &Id| g.range_kind(*r) == Some(RangeKind::Fused);
    (n.op == Op::Reduce)
        .then(|| n.src[1..].iter().copied().find(is_shared))
        .flatten()
}

/// Stages that a loop carries.
struct Slots {
    all: FxHashMap<Id, Carried>,
}

impl Slots {
    fn nest(&self, g: &mut Graph, nest: Id) -> Id {
        let mut n = Nest::from_store(g, nest);
        if let Some(&own) = self.all.get(&n.buffer) {
            n.value = replaced(g, n.value, |g, id| self.combined(g, id, own, n.offset));
            n.buffer = own.stage;
            n.offset = own.own(g, n.offset);
            return n.with_loops(&[own.range]).store(g);
        }
        let filled = n
            .closed
            .iter()
            .any(|&r| g.range_kind(r) == Some(RangeKind::Fused));
        n.value = match filled {
            true => self.in_iteration(g, n.value),
            false => replaced(g, n.value, |g, id| self.in_loop_and_behind(g, id)),
        };
        n.store(g)
    }
    /// Rewrites a node of a carried stage's nest for one iteration: its terms are combined
    /// with the previous value.
    fn combined(&self, g: &mut Graph, id: Id, own: Carried, offset: Id) -> Option<Id> {
        let n = g[id].clone();
        if n.op == Op::Rescaled {
            let sum = replaced(g, n.src[0], |g, id| self.of_iteration(g, id));
            let (factor, before) = (
                self.factor(g, n.src[1]),
                own.carried_value(g, offset, ReduceOp::Add),
            );
            let scaled = g.mul(before, factor);
            return Some(g.add(scaled, sum));
        }
        let Arg::Reduce(op, _) = n.arg else {
            return self.current(g, id);
        };
        let terms = self.of_iteration(g, id)?;
        let before = own.carried_value(g, offset, op);
        Some(g.build(op.combine(), n.dtype, smallvec![before, terms], Arg::None))
    }
    /// Rewrites a reduction over the loop as one over the terms of an iteration.
    fn of_iteration(&self, g: &mut Graph, id: Id) -> Option<Id> {
        let range = shared_range(g, id)?;
        let Arg::Reduce(op, _) = g[id].arg else {
            return None;
        };
        let rest: Vec<Id> = g[id].src[1..]
            .iter()
            .copied()
            .filter(|&r| r != range)
            .collect();
        let terms = self.in_iteration(g, g[id].src[0]);
        Some(if rest.is_empty() {
            terms
        } else {
            g.reduce_ranges(terms, &rest, op)
        })
    }
    /// Rewrites a node in the value of the nest that contains the loop. Terms inside the loop read
    /// the iteration's slot; values after it read the last slot.
    fn in_loop_and_behind(&self, g: &mut Graph, id: Id) -> Option<Id> {
        let n = g[id].clone();
        match n.op {
            Op::Rescaled => {
                let sum = replaced(g, n.src[0], |g, id| self.in_loop_and_behind(g, id));
                let src: Sources = smallvec![sum, self.factor(g, n.src[1])];
                Some(g.intern(Node { src, ..n }))
            }
            Op::Reduce => {
                shared_range(g, id)?;
                let mut src = n.src.clone();
                src[0] = self.in_iteration(g, src[0]);
                Some(g.intern(Node { src, ..n }))
            }
            Op::Load => {
                let of = self.all.get(&n.src[0])?;
                let at = of.at(g, n.src[1], g[of.range].src[0]);
                Some(g.load(of.stage, at, n.dtype))
            }
            _ => None,
        }
    }
    /// Rewrites loads of carried stages to read the slot of the current iteration.
    fn in_iteration(&self, g: &mut Graph, value: Id) -> Id {
        replaced(g, value, |g, id| self.current(g, id))
    }
    fn current(&self, g: &mut Graph, id: Id) -> Option<Id> {
        let n = g[id].clone();
        let of = self.all.get(n.src.first()?).filter(|_| n.op == Op::Load)?;
        let at = of.own(g, n.src[1]);
        Some(g.load(of.stage, at, n.dtype))
    }
    /// Returns the factor 2^(before - now) of a sum of multiples of 2^-m when m,
    /// a carried maximum, grows.
    fn factor(&self, g: &mut Graph, most: Id) -> Id {
        let n = g[most].clone();
        let Some(of) = self.all.get(&n.src[0]).filter(|_| n.op == Op::Load) else {
            unreachable!("the maximum has a stage that the loop carries: {n:?}")
        };
        let (before, now) = (
            of.carried_value(g, n.src[1], ReduceOp::Max),
            self.in_iteration(g, most),
        );
        let grown = g.sub(before, now);
        debug_assert_eq!(g.scalar(grown), Scalar::F32, "maxima of scores are f32");
        g.exp2(grown)
    }
}
