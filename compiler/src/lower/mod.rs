//! Lower: from the nests of a kernel to a linear list of statements.

pub mod linear;
pub mod print;
pub mod vector;

pub use linear::{Code, Statement, lower_body};
