//! Constrained decoding: an answer must match a grammar, which masks the tokens at each step.

mod bare;
pub mod bounds;
mod calls;
pub mod check;
mod close;
pub mod compile;
mod gbnf;
pub mod grammar;
mod intersections;
mod lark;
pub mod mask;
mod relax;
mod start;
mod watch;
