//! The rules that are tried on every node built.

use super::examples::keep;
use super::rule::{Rule, count};
use super::{algebra, index};
use crate::graph::Graph;
use crate::id::Id;
use crate::node::Node;
use crate::op::Op;
use crate::shape;

/// The tables that are tried on every node built.
pub static ALWAYS: &[&[Rule]] = &[algebra::RULES, index::RULES];

/// For every op, the always-on rules that can apply to it, with their numbers.
fn by_op(op: Op) -> &'static [(usize, &'static Rule)] {
    use std::sync::OnceLock;
    static INDEX: OnceLock<Vec<Vec<(usize, &'static Rule)>>> = OnceLock::new();
    let index = INDEX.get_or_init(|| {
        let mut index: Vec<Vec<(usize, &'static Rule)>> = Op::TABLE.iter().map(|_| Vec::new()).collect();
        for (number, rule) in ALWAYS.iter().flat_map(|t| t.iter()).enumerate() {
            for op in rule.ops {
                index[*op as usize].push((number, rule));
            }
        }
        index
    });
    &index[op as usize]
}

/// The result of the first always-on rule that applies.
pub(crate) fn apply(g: &mut Graph, node: &Node) -> Option<Id> {
    for &(number, rule) in by_op(node.op) {
        if let Some(id) = (rule.apply)(g, node) {
            count(g, number);
            let id = with_dims_of(g, node, id);
            keep(g, number, node, id);
            return Some(id);
        }
    }
    None
}

/// `id`, or, where a rule left only a scalar of an elementwise op on tensors (`x & 0`), the scalar in their shape.
fn with_dims_of(g: &mut Graph, node: &Node, id: Id) -> Id {
    if !node.op.is_elementwise() || !g.dims(id).is_empty() {
        return id;
    }
    match shape::of(g, node) {
        Some(dims) => g.spread(id, &dims),
        None => id,
    }
}

/// Counts that a rule of integer products has made `result` of a node: they are numbered after the always-on ones.
pub(super) fn count_dot(g: &mut Graph, number: usize, node: &Node, result: Id) {
    let number = ALWAYS.iter().map(|t| t.len()).sum::<usize>() + number;
    count(g, number);
    keep(g, number, node, result);
}
