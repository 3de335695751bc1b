//! Rewrite rules, by topic. Each is one line of a table: its name is its mathematics, its guard is in the code.
//!
//! How rules are written. A rule is directional and never leads to a worse expression. It holds for *every* value that its
//! pattern admits: integer rules that need bounds ask for them ([`Graph::bounds`]), float rules may not reassociate or
//! change a rounding (those that do live in the compiler's `derive`, where they are a priced choice). The always-on
//! tables below are tried whenever a node is built, in order, so sources are already simple. Each rule has a case in
//! `tests/rules.rs` under its name, in which it fires, and is evaluated there on random values against its left side.

use crate::graph::{Graph, Id, Node};
use crate::op::Op;
use crate::shape;

pub mod algebra;
pub mod dot;
pub mod index;
pub mod lift;

/// One rewrite rule.
pub struct Rule {
    /// Its mathematics: `x + 0 -> x`.
    pub name: &'static str,
    /// The ops at the root of its left side.
    pub ops: &'static [Op],
    /// The right side, if the rule applies to a node whose sources are in the graph.
    pub apply: fn(&mut Graph, &Node) -> Option<Id>,
}

macro_rules! rules { ($table:ident: $($name:literal [$($op:ident)*] $f:expr;)*) => {
    /// The rules of this topic.
    pub static $table: &[$crate::rules::Rule] = &[
        $($crate::rules::Rule { name: $name, ops: &[$($crate::op::Op::$op),*], apply: $f }),*
    ];
} }
pub(crate) use rules;

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
            return Some(with_dims_of(g, node, id));
        }
    }
    None
}

/// Counts that the rule of that number has fired.
fn count(g: &mut Graph, number: usize) {
    if g.fired.len() <= number {
        g.fired.resize(number + 1, 0);
    }
    g.fired[number] += 1;
}

/// Counts that a rule of integer products has fired: they are numbered after the always-on ones.
fn count_dot(g: &mut Graph, number: usize) {
    count(g, ALWAYS.iter().map(|t| t.len()).sum::<usize>() + number);
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

/// The rules that fired while a graph was built, and how often: always-on ones, then those of integer products.
pub fn fired(g: &Graph) -> Vec<(&'static str, u32)> {
    let all = ALWAYS.iter().copied().chain([dot::RULES]).flatten();
    all.map(|r| r.name).zip(g.fired.iter().copied()).filter(|f| f.1 > 0).collect()
}

/// Names of the always-on rules, in the order of [`Graph::fired`].
pub fn names() -> Vec<&'static str> {
    ALWAYS.iter().flat_map(|t| t.iter()).map(|r| r.name).collect()
}
