//! Lower: from the nests of a kernel to a linear list of statements.

mod halves;
pub mod linear;
mod mma;
mod pairs;
pub mod print;
pub mod vector;
pub mod wide;

pub use linear::{Code, Statement, identity, lower_body};
