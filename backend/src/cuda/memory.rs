//! Memory of a device.

use super::driver::{Context, Handle, Stream, check};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};
use gristmill_runtime::lease::Uses;
use gristmill_runtime::{Buffer, Error, Memory, RawBuffer};
use std::any::Any;
use std::sync::Arc;

/// An allocation.
pub struct DeviceMemory {
    handle: Handle<CUdeviceptr>,
    len: usize,
    uses: Uses,
}

// SAFETY: it has no address on the host.
unsafe impl RawBuffer for DeviceMemory {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn len(&self) -> usize {
        self.len
    }
    fn uses(&self) -> &Uses {
        &self.uses
    }
    fn host(&self) -> Option<*mut u8> {
        None
    }
}

/// A buffer of `bytes`; all but weights start as zeros.
pub fn alloc(context: &Arc<Context>, copies: &Stream, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
    let mut refused = false;
    let made = Handle::new(context, "cuMemAlloc", sys::cuMemFree_v2, |out| {
        // SAFETY: writes an address; none has no bytes.
        let result = unsafe { sys::cuMemAlloc_v2(out, bytes.max(1)) };
        refused = result == CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        result
    });
    let handle = made.map_err(|error| match refused {
        true => Error::OutOfMemory {
            what: memory.what().into(),
            wanted: bytes,
            free: context.memory().ok().map(|m| m.0 as u64),
            device: format!("cuda:{} ({})", context.number, context.model),
        },
        false => error,
    })?;
    if memory != Memory::Weights && bytes > 0 {
        // SAFETY: inside the allocation; nobody has its address yet.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(handle.raw(), 0, bytes, copies.raw()) })?;
        copies.wait()?;
    }
    Ok(Buffer::whole(Arc::new(DeviceMemory { handle, len: bytes, uses: Uses::new(&context.owner) })))
}

/// Address of `len` bytes at `offset` of a buffer, as an error if they are not there or not this device's.
pub fn address(
    context: &Arc<Context>,
    what: &str,
    buffer: &Buffer,
    offset: usize,
    len: usize,
) -> Result<CUdeviceptr, Error> {
    buffer.check(what, offset, len)?;
    buffer.check_device(what, context.owner.id())?;
    let memory =
        buffer.raw::<DeviceMemory>().ok_or_else(|| Error::invalid(what, "the buffer is no memory of a GPU"))?;
    Ok(memory.handle.raw() + (buffer.offset() + offset) as CUdeviceptr)
}
