//! Lower: from the nests of a kernel to a linear list of statements.

pub(crate) mod coalesce;
mod code;
mod linear;
pub(crate) mod mma;
pub(crate) mod mma_f16;
pub(crate) mod pairs;
pub mod print;
pub mod spec;
pub(crate) mod vector;

pub use code::{Code, Statement, When};
pub use linear::lower_body;
