//! Always-on rules, applied to every node built.

use super::examples::keep;
use super::rule::{Rule, count};
use super::{algebra, index};
use crate::graph::Graph;
use crate::id::Id;
use crate::node::Node;
use crate::op::Op;
use crate::shape;

/// Rule tables applied to every node built, in order.
pub static ALWAYS: &[&[Rule]] = &[algebra::RULES, index::RULES];

/// Returns the always-on rules for an op, with their numbers.
fn by_op(op: Op) -> &'static [(usize, &'static Rule)] {
    use std::sync::OnceLock;
    static INDEX: OnceLock<Vec<Vec<(usize, &'static Rule)>>> = OnceLock::new();
    let index = INDEX.get_or_init(|| {
        let mut index: Vec<Vec<(usize, &'static Rule)>> =
            Op::TABLE.iter().map(|_| Vec::new()).collect();
        for (number, rule) in ALWAYS.iter().flat_map(|t| t.iter()).enumerate() {
            for op in rule.ops {
                index[*op as usize].push((number, rule));
            }
        }
        index
    });
    &index[op as usize]
}

/// Returns the result of the first always-on rule that applies.
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

/// Returns `id`, broadcast to the node's shape if a rule reduced an elementwise op on tensors to
/// a scalar (`x & 0`).
fn with_dims_of(g: &mut Graph, node: &Node, id: Id) -> Id {
    if !node.op.is_elementwise() || !g.dims(id).is_empty() {
        return id;
    }
    match shape::infer_shape(g, node) {
        Some(dims) => g.spread(id, &dims),
        None => id,
    }
}

/// Counts an application of an int8 dot-product rule. These rules are numbered after the always-on
/// rules.
pub(super) fn count_dot(g: &mut Graph, number: usize, node: &Node, result: Id) {
    let number = ALWAYS.iter().map(|t| t.len()).sum::<usize>() + number;
    count(g, number);
    keep(g, number, node, result);
}
