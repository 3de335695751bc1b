//! What a rule is, and how tables of them are written.

use crate::graph::Graph;
use crate::id::Id;
use crate::node::Node;
use crate::op::Op;

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
    pub static $table: &[$crate::rules::rule::Rule] = &[
        $($crate::rules::rule::Rule { name: $name, ops: &[$($crate::op::Op::$op),*], apply: $f }),*
    ];
} }
pub(crate) use rules;

/// Counts that the rule of that number has fired.
pub(super) fn count(g: &mut Graph, number: usize) {
    if g.fired.len() <= number {
        g.fired.resize(number + 1, 0);
    }
    g.fired[number] += 1;
}
