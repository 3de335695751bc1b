//! Memory of a device.

use super::context::CudaContext;
use super::handle::{Handle, Stream};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};
use gristmill_runtime::lease::Uses;
use gristmill_runtime::{Buffer, Error, Memory, RawBuffer};
use std::ffi::c_void;
use std::sync::Arc;

/// An allocation.
pub struct DeviceMemory {
    handle: Handle<CUdeviceptr>,
    len: usize,
    uses: Uses,
    /// Where pieces of it may be on their way to it.
    copies: Arc<Stream>,
}

impl Drop for DeviceMemory {
    /// Steps keep what they use; copies do not.
    fn drop(&mut self) {
        let _ = self.copies.settle(); // if it fails the device is lost, and knows whether this may be freed
    }
}

// SAFETY: it has no address on the host.
unsafe impl RawBuffer for DeviceMemory {
    fn len(&self) -> usize {
        self.len
    }
    fn uses(&self) -> &Uses {
        &self.uses
    }
}

/// A buffer of `bytes`; all but weights start as zeros.
pub fn alloc(copies: &Arc<Stream>, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
    let context = copies.context();
    let current = context.enter()?;
    let mut refused = false;
    // SAFETY: writes the address of a new allocation, if it says success; none has no bytes.
    let made = unsafe {
        Handle::new(&current, "cuMemAlloc", sys::cuMemFree_v2, |out| {
            let result = sys::cuMemAlloc_v2(out, bytes.max(1));
            refused = result == CUresult::CUDA_ERROR_OUT_OF_MEMORY;
            result
        })
    };
    let handle = made.map_err(|error| match refused {
        true => Error::OutOfMemory {
            what: memory.what().into(),
            wanted: bytes,
            free: context.memory().ok().map(|m| m.0 as u64),
            device: context.title(),
        },
        false => error,
    })?;
    let made = DeviceMemory { handle, len: bytes, uses: Uses::new(&context.owner), copies: copies.clone() };
    if memory != Memory::Weights && bytes > 0 {
        // SAFETY: inside the allocation; nobody has its address yet.
        let queued = unsafe { sys::cuMemsetD8Async(made.handle.raw(), 0, bytes, copies.raw()) };
        current.check("cuMemsetD8Async", queued)?;
        copies.wait()?;
    }
    Ok(Buffer::whole(Arc::new(made)))
}

/// Address of `len` bytes at `offset` of a buffer, as an error if they are not there or not this device's.
pub fn address(
    context: &Arc<CudaContext>,
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

/// Memory of the host that the device copies from and to by itself.
pub type PinnedMemory = Handle<*mut c_void>;

/// So many bytes of it, with anything in them.
pub fn pinned(copies: &Stream, bytes: usize) -> Result<PinnedMemory, Error> {
    let current = copies.context().enter()?;
    // SAFETY: writes the address of a new allocation.
    unsafe { Handle::new(&current, "cuMemHostAlloc", sys::cuMemFreeHost, |out| sys::cuMemHostAlloc(out, bytes, 0)) }
}
