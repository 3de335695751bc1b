//! Analysis of a nest for thread mapping: loops and reductions that threads can share, and
//! memory access patterns. Proposers and the passes that apply a plan both use it, so they agree
//! on the loops and reductions.

use super::Along;
use crate::ir::nest::Nest;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};
use rustc_hash::{FxHashMap, FxHashSet};

/// Bytes of the widest load.
pub const WIDEST: i64 = 16;

/// Upper bound of a range's iterations.
pub fn most(g: &Graph, r: Id) -> i64 {
    g.max_of(g[r].src[0])
}

/// Iterations of a range, if constant.
pub fn fixed(g: &Graph, r: Id) -> Option<i64> {
    g.int_value(g[r].src[0])
}

/// Whether range `r` has this kind.
pub fn is(g: &Graph, r: Id, kind: RangeKind) -> bool {
    g.range_kind(r) == Some(kind)
}

/// Ranges that a reduction iterates over in a loop.
pub fn walked(g: &Graph, n: Id) -> Vec<Id> {
    g[n].src[1..]
        .iter()
        .copied()
        .filter(|&r| is(g, r, RangeKind::Reduce))
        .collect()
}

/// Reductions below `value` that lanes share: those independent of the ranges
/// of any enclosing reduction.
///
/// A longer inner reduction replaces an enclosing one that it depends on.
pub fn reductions(g: &Graph, value: Id) -> Vec<Id> {
    let all: Vec<Id> = g
        .toposort(&[value])
        .into_iter()
        .filter(|&n| g[n].op == Op::Reduce)
        .collect();
    let mut around: FxHashMap<Id, FxHashSet<Id>> = FxHashMap::default();
    for &outer in &all {
        for n in g.toposort(&[g[outer].src[0]]) {
            if g[n].op == Op::Reduce {
                around
                    .entry(n)
                    .or_default()
                    .extend(g[outer].src[1..].iter().copied());
            }
        }
    }
    let longest = |n: Id| walked(g, n).iter().map(|&r| most(g, r)).max().unwrap_or(1);
    let depends = |n: Id, on: Id| g.free_ranges(n).iter().any(|r| g[on].src[1..].contains(r));
    let mut found: Vec<Id> = all
        .iter()
        .copied()
        .filter(|n| {
            around
                .get(n)
                .is_none_or(|a| g.free_ranges(*n).iter().all(|r| !a.contains(r)))
        })
        .collect();
    for n in found.clone() {
        let inner: Vec<Id> = all
            .iter()
            .copied()
            .filter(|&m| depends(m, n) && longest(m) > longest(n))
            .collect();
        if !inner.is_empty() {
            found.retain(|&x| x != n);
            found.extend(inner);
        }
    }
    // A reduction contained in another is computed for each term by the lane that has that term, so
    // it cannot be divided among the same lanes again.
    let contained = |n: Id| found.iter().any(|&other| depends(n, other));
    found.iter().copied().filter(|&n| !contained(n)).collect()
}

/// Reductions and loops of a nest, by the threads that share them.
pub struct NestView {
    /// Reductions that each output element has for itself, shared by the lanes of a group.
    pub own: Vec<Id>,
    /// Reductions common to all output elements, shared by all threads of the workgroup.
    pub common: Vec<Id>,
    /// Loops over output elements that are distributed over groups of threads.
    pub shared: Vec<Id>,
}

impl NestView {
    /// Analyses a nest for a workgroup with that many threads.
    pub fn new(g: &Graph, nest: &Nest, threads: i64) -> NestView {
        // A reduction that another one recomputes for each term is left to each lane alone.
        let of_output = |&n: &Id| {
            g.free_ranges(n)
                .iter()
                .any(|&r| nest.closed.contains(&r) && is(g, r, RangeKind::Loop))
        };
        let (own, common): (Vec<Id>, Vec<Id>) =
            reductions(g, nest.value).into_iter().partition(of_output);
        let shared = shared(g, &nest.closed, &own, threads);
        NestView {
            own,
            common,
            shared,
        }
    }
    /// The shared reductions in the order of a plan: each after those that it contains.
    pub fn sums(&self, g: &Graph, value: Id) -> Vec<Id> {
        let is_sum = |n: &Id| self.own.contains(n) || self.common.contains(n);
        g.toposort(&[value]).into_iter().filter(is_sum).collect()
    }
}

/// Loops to distribute over threads: those that every reduction depends on, since others
/// would recompute a reduction.
///
/// At most one loop without a constant bound is included, the outermost, if the others leave
/// threads idle. If there is none and threads are idle, loops that only some reductions depend on
/// are included where the recomputed reductions are no longer than those.
fn shared(g: &Graph, closed: &[Id], reductions: &[Id], threads: i64) -> Vec<Id> {
    let loops = closed
        .iter()
        .copied()
        .filter(|&r| is(g, r, RangeKind::Loop));
    let wanted: Vec<Id> = loops
        .filter(|r| reductions.iter().all(|&n| g.free_ranges(n).contains(r)))
        .collect();
    let known: Vec<Id> = wanted
        .iter()
        .copied()
        .filter(|&r| fixed(g, r).is_some())
        .collect();
    let count: i64 = known.iter().map(|&r| most(g, r)).product();
    let open = wanted
        .iter()
        .copied()
        .find(|&r| fixed(g, r).is_none() && g.free_ranges(g[r].src[0]).is_empty());
    match open {
        Some(open) if count < threads => [open].into_iter().chain(known).collect(),
        None if count < threads => {
            let also = |r: &Id| {
                known.contains(r) || fixed(g, *r).is_some() && is_cheap_to_repeat(g, reductions, *r)
            };
            closed
                .iter()
                .copied()
                .filter(|&r| is(g, r, RangeKind::Loop))
                .filter(also)
                .collect()
        }
        _ => known,
    }
}

/// Whether some reduction depends on that loop and has at least as many terms as those that do not.
fn is_cheap_to_repeat(g: &Graph, reductions: &[Id], r: Id) -> bool {
    let terms = |&&n: &&Id| walked(g, n).iter().map(|&w| most(g, w)).product::<i64>();
    let (own, again): (Vec<&Id>, Vec<&Id>) = reductions
        .iter()
        .partition(|&&n| g.free_ranges(n).contains(&r));
    own.iter()
        .map(terms)
        .max()
        .is_some_and(|most| again.iter().all(|n| terms(n) <= most))
}

/// Loads from parameters: offset, and bytes of the offset's unit.
pub fn loads(g: &Graph, value: Id) -> Vec<(Id, i64)> {
    let mut out = Vec::new();
    for n in g.toposort(&[value]) {
        let node = &g[n];
        if node.op == Op::Load && g[node.src[0]].op == Op::Param {
            out.push((node.src[1], g.unit_bytes(node.src[0])));
        }
    }
    out
}

/// Whether the loads of `value` are mostly contiguous along the last shared loop or along a
/// range of the reductions.
pub fn along(g: &Graph, value: Id, reductions: &[Id], shared: &[Id]) -> Along {
    let Some(&last) = shared.last() else {
        return Along::Reduction;
    };
    let inner: Vec<Id> = reductions.iter().flat_map(|&n| walked(g, n)).collect();
    let (mut output, mut reduction) = (0, 0);
    for (at, unit) in loads(g, value) {
        let sum = g.linear(at);
        let near = |r: Id| (1..=WIDEST).contains(&(sum.coefficient(r).abs() * unit));
        if near(last) {
            output += 1;
        } else if inner.iter().any(|&r| near(r)) {
            reduction += 1;
        }
    }
    if output > reduction {
        Along::Output
    } else {
        Along::Reduction
    }
}

/// Elements in a wide load of the narrowest plain operand contiguous along `r`; 1 if packed
/// operands depend on `r`, since one of their steps is already a wide load.
pub fn widest(g: &Graph, value: Id, r: Id) -> i64 {
    let packed = |n: &gristmill_uop::Node| {
        n.op == Op::Load && matches!(g[n.src[0]].arg, Arg::Packed(_, e) if e.elements > 1)
    };
    if g.any(value, |n, node| {
        packed(node) && g.free_ranges(n).contains(&r)
    }) {
        return 1;
    }
    let mut most = 1;
    for n in g.toposort(&[value]) {
        let node = &g[n];
        if node.op != Op::Load || matches!(g[node.src[0]].arg, Arg::Packed(..)) {
            continue;
        }
        let sum = g.linear(node.src[1]);
        if sum.coefficient(r) == 1
            && sum
                .terms
                .iter()
                .all(|&(t, _)| t == r || !g.any(t, |x, _| x == r))
        {
            most = most.max(WIDEST / node.dtype.scalar.bytes() as i64);
        }
    }
    most
}

/// The range of a reduction to divide among lanes: one with a multiple of `lanes`
/// iterations, else the longest.
pub fn divided(g: &Graph, walked: &[Id], lanes: i64) -> Option<Id> {
    let by = |&&r: &&Id| {
        (
            fixed(g, r).is_some_and(|b| b % lanes == 0),
            most(g, r).min(1 << 20),
        )
    };
    walked.iter().max_by_key(by).copied()
}
