//! What a rule of tensors is, and how tables of them are written.

use crate::alternatives::term::{Class, Term};
use crate::alternatives::terms::TermGraph;

/// A rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Its mathematics.
    pub name: &'static str,
    /// Is the right side never dearer? Then the left one is no choice any more, unless it was written.
    pub better: bool,
    /// The classes that equal a class which has this term.
    pub apply: fn(&mut TermGraph, &Term) -> Vec<Class>,
}

/// `equal` rules, either side of which may be cheaper, and `better` ones.
macro_rules! rules {
    ($($kind:ident $name:literal $f:expr;)*) => {
        /// The rules of this topic.
        pub(super) const RULES: &[$crate::alternatives::rules::rule::Rule] =
            &[$($crate::alternatives::rules::rule::Rule { name: $name, better: rules!(@$kind), apply: $f }),*];
    };
    (@equal) => { false };
    (@better) => { true };
}
pub(super) use rules;
