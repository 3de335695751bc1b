//! A compiled program on a GPU.

use super::modules::Loaded;
use gristmill_runtime::{DeviceId, Kernel};
use gristmill_uop::program::Program;
use std::any::Any;

/// A kernel of a GPU.
pub struct CudaKernel {
    program: Program,
    device: DeviceId,
    pub(super) loaded: Loaded,
}

impl Kernel for CudaKernel {
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

impl CudaKernel {
    /// The kernel that a loaded function is.
    pub(super) fn new(program: Program, device: DeviceId, loaded: Loaded) -> CudaKernel {
        CudaKernel { program, device, loaded }
    }
}
