//! Rewrite rules, and the macro for tables of them.

use crate::alternatives::term::{Class, Term};
use crate::alternatives::terms::TermGraph;

/// A rewrite rule on terms.
#[derive(Clone, Copy)]
pub struct Rule {
    /// The identity that the rule applies, as shown in reports and tests.
    pub name: &'static str,
    /// Whether the right side never costs more. The left side is then no candidate,
    /// unless it was written.
    pub better: bool,
    /// Returns classes equal to a class that contains this term.
    pub apply: fn(&mut TermGraph, &Term) -> Vec<Class>,
}

/// Builds a table of `equal` rules, either side of which may be cheaper, and `better` ones.
macro_rules! rules {
    ($($kind:ident $name:literal $f:expr;)*) => {
        /// Rules of this topic.
        pub(super) const RULES: &[$crate::alternatives::rules::rule::Rule] =
            &[$($crate::alternatives::rules::rule::Rule { name: $name, better: rules!(@$kind), apply: $f }),*];
    };
    (@equal) => { false };
    (@better) => { true };
}
pub(super) use rules;
