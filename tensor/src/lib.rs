//! The lazy tensor, functions, the schedule cache and the jit.

mod capture;
pub mod evaluate;
pub mod function;
pub mod jit;
pub mod nn;
pub mod tensor;
