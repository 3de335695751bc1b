//! Lower: from the nests of a kernel to a linear list of statements.

mod coalesce;
mod code;
mod linear;
mod mma;
mod mma_f16;
mod pairs;
pub mod print;
mod vector;

pub use code::{Code, Statement, When};
pub use linear::lower_body;
