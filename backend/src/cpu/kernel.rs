//! What a program is on the CPU: a function, and the library that has it.

use super::unit::{Function, LoadedUnit};
use std::sync::Arc;

/// The code of a kernel.
pub struct CpuCode {
    pub(super) function: Function,
    /// Keeps the function.
    pub(super) _library: Arc<LoadedUnit>,
}
