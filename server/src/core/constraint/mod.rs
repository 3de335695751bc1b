//! What an answer must be, as a grammar that says token by token which may come next.

mod bare;
pub mod bounds;
mod calls;
mod close;
mod gbnf;
pub mod grammar;
mod lark;
pub mod mask;
