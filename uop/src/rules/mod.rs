//! Rewrite rules, by topic. Each is one line of a table: its name is its mathematics, its guard
//! is in the code.
//!
//! Conventions: a rule is directional and never yields a worse expression. It holds for *every*
//! value that its pattern admits: integer rules that need bounds query them ([`Graph::bounds`]),
//! and float rules may not reassociate or change a rounding (rules that do are in [`dot`], applied
//! only where the compiler chooses that form by cost). The always-on tables are tried in order
//! whenever a node is built, so sources are already simplified. Each rule has a case of the same
//! name in `tests/rules.rs` in which it fires; both sides are evaluated there on random values.

pub mod algebra;
mod always;
pub mod dot;
mod examples;
pub mod index;
pub mod lift;
mod rule;

pub use always::ALWAYS;
pub(crate) use always::apply;
pub use rule::Rule;

use crate::graph::Graph;
use crate::id::Id;
use crate::node::Node;

/// Returns the rules that fired while a graph was built, with counts: always-on rules,
/// then integer product rules.
pub fn fired(g: &Graph) -> Vec<(&'static str, u32)> {
    let all = ALWAYS.iter().copied().chain([dot::RULES]).flatten();
    all.map(|r| r.name)
        .zip(g.fired.iter().copied())
        .filter(|f| f.1 > 0)
        .collect()
}

/// A rule that fired: its name, its count, and examples (the node before, the
/// id of its replacement).
pub type Fired<'g> = (&'static str, u32, &'g [(Node, Id)]);

/// Like [`fired`], with the examples recorded since [`Graph::keep_examples`].
pub fn fired_with_examples(g: &Graph) -> Vec<Fired<'_>> {
    let all = ALWAYS.iter().copied().chain([dot::RULES]).flatten();
    let examples = |number: usize| {
        g.examples
            .as_ref()
            .and_then(|all| all.get(number))
            .map_or(&[][..], Vec::as_slice)
    };
    let row = |(number, (rule, times)): (usize, (&Rule, u32))| (rule.name, times, examples(number));
    all.zip(g.fired.iter().copied())
        .enumerate()
        .map(row)
        .filter(|row| row.1 > 0)
        .collect()
}

/// Returns the names of the always-on rules, in the order of [`Graph::fired`].
pub fn names() -> Vec<&'static str> {
    ALWAYS
        .iter()
        .flat_map(|t| t.iter())
        .map(|r| r.name)
        .collect()
}
