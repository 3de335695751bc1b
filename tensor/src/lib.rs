//! The lazy tensor, functions, the schedule cache and the jit.

pub mod evaluate;
