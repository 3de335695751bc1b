//! Buffers of the host, zeroed lazily by the system.

use gristmill_runtime::RawBuffer;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;

/// A zeroed piece of memory, 16-byte aligned.
pub(super) struct HostMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory; who may touch it when is the runtime's contract: launches run one at a time, and callers do not
// read or write during a replay.
unsafe impl Send for HostMemory {}
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// `None` where the system has no such piece.
    pub(super) fn new(bytes: usize) -> Option<HostMemory> {
        let layout = Layout::from_size_align(bytes.max(1), 16).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(HostMemory { start, layout })
    }
    /// Its address.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl RawBuffer for HostMemory {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn host(&self) -> Option<*mut u8> {
        Some(self.start())
    }
}
