//! The lazy tensor, functions, the schedule cache and the jit.

#[cfg(test)]
mod build_id;
mod capture;
pub mod evaluate;
pub mod function;
pub mod jit;
mod kept;
pub mod nn;
pub mod tensor;
