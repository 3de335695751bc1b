//! Rewrite rules on tensors, by topic. A rule is one line of a table: its name states the identity,
//! its code the guard.
//!
//! A rule adds an equal term to an e-class; cost plays no part. It holds for all values (for
//! finite ones if its name says so), up to rounding of sums and of queries that are multiplied
//! with an f16 cache (`attention.rs`). Shapes are checked whenever classes are merged. Each rule
//! has a test of its name in `compiler/tests/passes/alternatives`, which evaluates every form that
//! it reaches on random values.

mod attention;
mod contraction;
mod movement;
mod rule;
mod scatter;

pub use rule::Rule;

/// Returns the rules of all topics.
pub fn all() -> Vec<Rule> {
    [
        contraction::RULES,
        movement::RULES,
        attention::RULES,
        scatter::RULES,
    ]
    .concat()
}
