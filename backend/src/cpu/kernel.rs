//! A compiled program on the CPU.

use super::unit::{Function, Loaded};
use gristmill_runtime::{DeviceId, Kernel};
use gristmill_uop::program::Program;
use std::any::Any;
use std::sync::Arc;

/// A kernel of the CPU.
pub struct CpuKernel {
    program: Program,
    device: DeviceId,
    pub(super) function: Function,
    /// Keeps the function.
    _library: Arc<Loaded>,
}

impl Kernel for CpuKernel {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn program(&self) -> &Program {
        &self.program
    }
    fn device(&self) -> DeviceId {
        self.device
    }
}

impl CpuKernel {
    /// The kernel that a function of `library` is.
    pub(super) fn new(program: Program, device: DeviceId, function: Function, library: Arc<Loaded>) -> CpuKernel {
        CpuKernel { program, device, function, _library: library }
    }
}
