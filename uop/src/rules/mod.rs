//! Rewrite rules, by topic. Each is one line of a table: its name is its mathematics, its guard is in the code.
//!
//! How rules are written. A rule is directional and never leads to a worse expression. It holds for *every* value that its
//! pattern admits: integer rules that need bounds ask for them ([`Graph::bounds`]), float rules may not reassociate or
//! change a rounding (those that do live in the compiler's `derive`, where they are a priced choice). The always-on
//! tables below are tried whenever a node is built, in order, so sources are already simple. Each rule has a case in
//! `tests/rules.rs` under its name, in which it fires, and is evaluated there on random values against its left side.

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

/// The rules that fired while a graph was built, and how often: always-on ones, then those of integer products.
pub fn fired(g: &Graph) -> Vec<(&'static str, u32)> {
    let all = ALWAYS.iter().copied().chain([dot::RULES]).flatten();
    all.map(|r| r.name).zip(g.fired.iter().copied()).filter(|f| f.1 > 0).collect()
}

/// A rule that fired, how often, and cases of it: the node that was asked for, and the one that there is instead.
pub type Fired<'g> = (&'static str, u32, &'g [(Node, Id)]);

/// The same with cases since [`Graph::keep_examples`].
pub fn fired_with_examples(g: &Graph) -> Vec<Fired<'_>> {
    let all = ALWAYS.iter().copied().chain([dot::RULES]).flatten();
    let examples = |number: usize| g.examples.as_ref().and_then(|all| all.get(number)).map_or(&[][..], Vec::as_slice);
    let row = |(number, (rule, times)): (usize, (&Rule, u32))| (rule.name, times, examples(number));
    all.zip(g.fired.iter().copied()).enumerate().map(row).filter(|row| row.1 > 0).collect()
}

/// Names of the always-on rules, in the order of [`Graph::fired`].
pub fn names() -> Vec<&'static str> {
    ALWAYS.iter().flat_map(|t| t.iter()).map(|r| r.name).collect()
}
