//! Loaded form of a program on the CPU.

use super::unit::{Function, LoadedUnit};
use std::sync::Arc;

/// A kernel's function.
pub struct CpuCode {
    pub(super) function: Function,
    /// Keeps the function loaded.
    pub(super) _library: Arc<LoadedUnit>,
}
