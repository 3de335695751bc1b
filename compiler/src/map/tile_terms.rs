//! Splits the K dimension of a nest of MMA tiles (AMX, cooperative matrices) into steps and a
//! fragment's terms.
//!
//! The workgroup is laid out in rows and columns of tiles. For packed weights that a CPU unpacks,
//! `kernel/rangeify.rs` has split it with the weight's blocks.

use crate::ir::nest::{Nest, Ranges, strided};
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::{Machine, MachineKind};
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp};
use rustc_hash::FxHashMap;

/// Rewrites a nest to sum over whole fragments. On a GPU a subgroup holds each tile together, so
/// its threads are a range that no value depends on.
pub fn nest(g: &mut Graph, store: Id, of: &Fragment, machine: &Machine, ranges: &mut Ranges) -> Id {
    let mut nest = Nest::from_store(g, store);
    let on_core = machine.kind == MachineKind::Cpu;
    if !on_core {
        nest.closed
            .push(ranges.fixed(g, machine.widest, RangeKind::Vector));
    }
    let sum = g[nest.value].clone();
    let (Op::Reduce, Arg::Reduce(ReduceOp::Add, _), &[value, ref outer @ .., term]) =
        (sum.op, &sum.arg, &sum.src[..])
    else {
        return store;
    };
    let outer = outer.to_vec();
    let Some(terms) = g.int_value(g[term].src[0]).filter(|n| n % of.terms == 0) else {
        return store;
    };
    if g.range_kind(term) != Some(RangeKind::Reduce) {
        return store;
    }
    let [steps, tile] = if on_core {
        [RangeKind::Reduce, RangeKind::Unroll]
    } else {
        [RangeKind::Unroll, RangeKind::Tile]
    };
    let step = ranges.fixed(g, terms / of.terms, steps);
    let at = ranges.fixed(g, of.terms, tile);
    let index = strided(g, &[(step, of.terms), (at, 1)]);
    let value = g.substitute(value, &mut FxHashMap::from_iter([(term, index)]));
    let over: Vec<Id> = outer
        .into_iter()
        .chain([step, at])
        .filter(|&r| g[r].op == Op::Range)
        .collect();
    let value = g.reduce_ranges(value, &over, ReduceOp::Add);
    Nest { value, ..nest }.store(g)
}
