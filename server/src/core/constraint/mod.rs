//! What an answer must be, as a grammar that says token by token which may come next.

pub mod bounds;
mod close;
mod gbnf;
pub mod grammar;
pub mod mask;
