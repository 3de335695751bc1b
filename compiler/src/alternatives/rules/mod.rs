//! Rules of tensors, by topic. Each is one line of a table: its name is its mathematics, its guard is in the code.
//!
//! A rule says that a class of terms has another term, whatever it costs: what is cheaper is nobody's business here. It holds for every value, but for the rounding of
//! sums, and of queries that are rounded where they meet a cache (`attention.rs`). Shapes are checked wherever classes are joined. Each rule has a case under its name
//! in `tensor/tests/passes/alternatives`, where every form that it leads to is evaluated on random values.

mod attention;
mod contraction;
mod movement;

use super::term::{Class, Term};
use super::terms::Terms;

/// A rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Its mathematics.
    pub name: &'static str,
    /// Is the right side never dearer? Then the left one is no choice any more, unless it was written.
    pub better: bool,
    /// The classes that equal a class which has this term.
    pub apply: fn(&mut Terms, &Term) -> Vec<Class>,
}

/// `equal` rules, either side of which may be cheaper, and `better` ones.
macro_rules! rules {
    ($($kind:ident $name:literal $f:expr;)*) => {
        /// The rules of this topic.
        pub(super) const RULES: &[$crate::alternatives::rules::Rule] =
            &[$($crate::alternatives::rules::Rule { name: $name, better: rules!(@$kind), apply: $f }),*];
    };
    (@equal) => { false };
    (@better) => { true };
}
use rules;

/// Every rule.
pub fn all() -> Vec<Rule> {
    [contraction::RULES, movement::RULES, attention::RULES].concat()
}
