//! Constrained decoding: an answer must match a grammar, which masks the tokens at each step.

mod bare;
pub mod bounds;
mod calls;
mod close;
pub mod compile;
mod gbnf;
pub mod grammar;
mod lark;
pub mod mask;
mod relax;
