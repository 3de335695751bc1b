//! Memory of a device, and pinned memory of the host.

use super::context::CudaContext;
use super::handle::{Handle, Stream};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};
use gristmill_runtime::lease::Uses;
use gristmill_runtime::{Buffer, Error, HostBytes, KeptBytes, Memory, RawBuffer};
use std::ffi::c_void;
use std::sync::Arc;

/// An allocation on the device.
pub struct DeviceMemory {
    handle: Handle<CUdeviceptr>,
    len: usize,
    uses: Uses,
    /// Stream in which staged copies to it may be queued.
    copies: Arc<Stream>,
}

impl Drop for DeviceMemory {
    /// Waits for staged copies; steps keep their buffers alive, copies do not.
    fn drop(&mut self) {
        // on failure the device is lost, and `is_stuck` decides about freeing
        let _ = self.copies.settle();
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

/// Allocates a buffer of `bytes`, filled with zeros except for weights.
pub fn alloc(copies: &Arc<Stream>, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
    let context = copies.context();
    let current = context.enter()?;
    let mut refused = false;
    // SAFETY: writes the address of a new allocation on success; no allocation has zero bytes.
    let made = unsafe {
        Handle::new(&current, "cuMemAlloc", sys::cuMemFree_v2, |out| {
            let result = sys::cuMemAlloc_v2(out, bytes.max(1));
            refused = result == CUresult::CUDA_ERROR_OUT_OF_MEMORY;
            result
        })
    };
    let handle = made.map_err(|error| match refused {
        true => Error::OutOfMemory {
            what: memory.describe().into(),
            wanted: bytes,
            free: context.memory().ok().map(|m| m.0 as u64),
            device: context.title(),
        },
        false => error,
    })?;
    let made = DeviceMemory {
        handle,
        len: bytes,
        uses: Uses::new(&context.owner),
        copies: copies.clone(),
    };
    if memory != Memory::Weights && bytes > 0 {
        // SAFETY: inside the allocation; its address is not shared yet.
        let queued = unsafe { sys::cuMemsetD8Async(made.handle.raw(), 0, bytes, copies.raw()) };
        current.check("cuMemsetD8Async", queued)?;
        copies.wait()?;
    }
    Ok(Buffer::whole(Arc::new(made)))
}

/// Returns the address of `len` bytes at `offset` after checking the range and the device.
pub fn address(
    context: &Arc<CudaContext>,
    what: &str,
    buffer: &Buffer,
    offset: usize,
    len: usize,
) -> Result<CUdeviceptr, Error> {
    buffer.check(what, offset, len)?;
    buffer.check_device(what, context.owner.id())?;
    let memory = buffer
        .raw::<DeviceMemory>()
        .ok_or_else(|| Error::invalid(what, "the buffer is no memory of a GPU"))?;
    Ok(memory.handle.raw() + (buffer.offset() + offset) as CUdeviceptr)
}

/// Bytes in pinned memory, which copies may read until it is dropped.
pub struct PinnedBytes {
    memory: PinnedMemory,
    len: usize,
    copies: Arc<Stream>,
    /// The bytes of another device's buffer that were pinned where they are.
    host: Option<HostBytes>,
}

/// Unit in which memory is pinned.
const PAGE_BYTES: usize = 4096;

impl PinnedBytes {
    /// Allocates `len` bytes with undefined contents.
    pub fn new(copies: &Arc<Stream>, len: usize) -> Result<PinnedBytes, Error> {
        Ok(PinnedBytes {
            memory: pinned(copies, len.max(1))?,
            len,
            copies: copies.clone(),
            host: None,
        })
    }
    /// Pins the bytes of another device's buffer.
    ///
    /// # Errors
    /// When the system does not pin them, for example because it has pinned a part of them.
    pub fn of_host(copies: &Arc<Stream>, host: HostBytes) -> Result<PinnedBytes, Error> {
        let bytes = host.bytes();
        let begin = bytes.as_ptr().cast_mut().cast::<c_void>();
        let before = begin.addr() % PAGE_BYTES;
        let pages = (before + bytes.len()).next_multiple_of(PAGE_BYTES);
        let current = copies.context().enter()?;
        // SAFETY: pins whole pages; it writes the address that destroys the registration. The
        // mapping lives as long as `host`, which is dropped after the handle.
        let memory = unsafe {
            let begin = begin.byte_sub(before);
            Handle::new(
                &current,
                "cuMemHostRegister",
                sys::cuMemHostUnregister,
                |out| {
                    let registered = sys::cuMemHostRegister_v2(begin, pages, 0);
                    out.write(begin);
                    registered
                },
            )?
        };
        Ok(PinnedBytes {
            memory,
            len: bytes.len(),
            copies: copies.clone(),
            host: Some(host),
        })
    }
    /// Address of the first byte.
    pub fn address(&self) -> *mut c_void {
        match &self.host {
            Some(host) => host.bytes().as_ptr().cast_mut().cast(),
            None => self.memory.raw(),
        }
    }
}

// SAFETY: the bytes are written before others see them and only read afterwards.
unsafe impl Send for PinnedBytes {}
// SAFETY: as above.
unsafe impl Sync for PinnedBytes {}

impl KeptBytes for PinnedBytes {
    fn bytes(&self) -> &[u8] {
        // SAFETY: an allocation of that length, initialised by the system and written by `keep`, or
        // the bytes of a buffer.
        unsafe { std::slice::from_raw_parts(self.address().cast(), self.len) }
    }
}

impl Drop for PinnedBytes {
    /// Waits for copies that read the bytes.
    fn drop(&mut self) {
        // on failure the device is lost, and `is_stuck` decides about freeing
        let _ = self.copies.settle();
    }
}

/// Page-locked host memory, which the device reads and writes by DMA.
pub type PinnedMemory = Handle<*mut c_void>;

/// Allocates pinned memory with undefined contents.
pub fn pinned(copies: &Stream, bytes: usize) -> Result<PinnedMemory, Error> {
    let current = copies.context().enter()?;
    // SAFETY: writes the address of a new allocation.
    unsafe {
        Handle::new(&current, "cuMemHostAlloc", sys::cuMemFreeHost, |out| {
            sys::cuMemHostAlloc(out, bytes, 0)
        })
    }
}
