//! Rules of tensors, by topic. Each is one line of a table: its name is its mathematics, its guard is in the code.
//!
//! A rule says that a class of terms has another term, whatever it costs: what is cheaper is nobody's business here. It holds for every value, or where
//! its name says so for finite ones, but for the rounding of sums, and of queries that are rounded where they meet a cache (`attention.rs`). Shapes are checked wherever classes are joined. Each rule has a case under its name
//! in `tensor/tests/passes/alternatives`, where every form that it leads to is evaluated on random values.

mod attention;
mod contraction;
mod movement;
mod rule;
mod scatter;

pub use rule::Rule;

/// Every rule.
pub fn all() -> Vec<Rule> {
    [contraction::RULES, movement::RULES, attention::RULES, scatter::RULES].concat()
}
