//! A nest whose workgroup has laid out the rows and columns of a core's tiles: the range of its sum is cut into steps, and the terms of a fragment. That of a
//! packed weight has been cut with its blocks (`schedule/expand.rs`).

use crate::nest::{Nest, Ranges, strided};
use gristmill_uop::fragment::Fragment;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp};
use rustc_hash::FxHashMap;

/// The nest of `store` with its sum over whole fragments.
pub fn nest(g: &mut Graph, store: Id, of: &Fragment, ranges: &mut Ranges) -> Id {
    let nest = Nest::of(g, store);
    let sum = g[nest.value].clone();
    let (Op::Reduce, Arg::Reduce(ReduceOp::Add, _), &[value, term]) = (sum.op, &sum.arg, &sum.src[..]) else {
        return store;
    };
    let Some(terms) = g.int_value(g[term].src[0]).filter(|n| n % of.terms == 0) else { return store };
    if g.range_kind(term) != Some(RangeKind::Reduce) {
        return store;
    }
    let step = ranges.fixed(g, terms / of.terms, RangeKind::Reduce);
    let at = ranges.fixed(g, of.terms, RangeKind::Unroll);
    let index = strided(g, &[(step, of.terms), (at, 1)]);
    let value = g.substitute(value, &mut FxHashMap::from_iter([(term, index)]));
    let over: Vec<Id> = [step, at].into_iter().filter(|&r| g[r].op == Op::Range).collect();
    let value = g.reduce_ranges(value, &over, ReduceOp::Add);
    Nest { value, ..nest }.store(g)
}
