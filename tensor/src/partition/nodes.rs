//! Properties of nodes that decide where they may be.

use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::op::Class;
use gristmill_uop::{Arg, Graph, Id, Op};
use rustc_hash::FxHashSet;

/// Returns whether a slot can hold values of this type.
pub(super) fn is_storable(scalar: Scalar) -> bool {
    !matches!(scalar, Scalar::Bool | Scalar::I64)
}

/// Returns the nodes outside `of` that depend on a node of it.
pub(super) fn users(g: &Graph, order: &[Id], of: &FxHashSet<Id>) -> FxHashSet<Id> {
    let mut users = FxHashSet::default();
    for &id in order {
        let mut src = g[id].src.iter();
        if !of.contains(&id) && src.any(|s| of.contains(s) || users.contains(s)) {
            users.insert(id);
        }
    }
    users
}

/// Returns whether a part computes the node again instead of reading it: slots, dequantised weights
/// and views of them.
pub(super) fn is_free(function: &Function, id: Id) -> bool {
    let g = &function.graph;
    match slot_of(g, id) {
        Some(slot) => function.slots[slot as usize].kind != SlotKind::State,
        None => g[id].op == Op::Decode || g[id].op.class() == Class::Movement,
    }
}

/// Returns the value that a view shows as a whole, perhaps several times: a part that needs the
/// view reads that value and makes the view again.
pub(super) fn viewed(g: &Graph, id: Id) -> Option<Id> {
    let shows_all = matches!(g[id].op, Op::Reshape | Op::Permute | Op::Expand);
    shows_all.then(|| g[id].src[0])
}

pub(super) fn slot_of(g: &Graph, id: Id) -> Option<u32> {
    match g[id].arg {
        Arg::Param(slot) | Arg::Packed(slot, _) if g[id].op == Op::Param => Some(slot),
        _ => None,
    }
}
