//! Rewrite rules and the macro that declares tables of them.

use crate::graph::Graph;
use crate::id::Id;
use crate::node::Node;
use crate::op::Op;

/// A rewrite rule of one node.
pub struct Rule {
    /// Name, its mathematics: `x + 0 -> x`.
    pub name: &'static str,
    /// Ops at the root of its left side.
    pub ops: &'static [Op],
    /// Returns the right side if the rule applies to the node, with sources in the graph.
    pub apply: fn(&mut Graph, &Node) -> Option<Id>,
}

macro_rules! rules { ($table:ident: $($name:literal [$($op:ident)*] $f:expr;)*) => {
    /// Rules of this topic, in the order in which they are tried.
    pub static $table: &[$crate::rules::rule::Rule] = &[
        $($crate::rules::rule::Rule { name: $name, ops: &[$($crate::op::Op::$op),*], apply: $f }),*
    ];
} }
pub(crate) use rules;

/// Counts an application of the rule with that number.
pub(super) fn count(g: &mut Graph, number: usize) {
    if g.fired.len() <= number {
        g.fired.resize(number + 1, 0);
    }
    g.fired[number] += 1;
}
