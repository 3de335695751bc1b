//! Host buffers, zeroed lazily by the operating system.

use gristmill_runtime::RawBuffer;
use gristmill_runtime::lease::{Owner, Uses};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// A zeroed allocation, aligned to 16 bytes.
pub(super) struct HostMemory {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
    uses: Uses,
}

// SAFETY: the allocation belongs to no thread.
unsafe impl Send for HostMemory {}
// SAFETY: as above; its bytes are accessed only by address, under the rules of `RawBuffer`.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates zeroed memory; `None` if the system has too little.
    pub(super) fn new(owner: &Owner, bytes: usize) -> Option<HostMemory> {
        let layout = Layout::from_size_align(bytes.max(1), 16).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(HostMemory {
            start,
            layout,
            len: bytes,
            uses: Uses::new(owner),
        })
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

// SAFETY: at least `len` zeros were allocated; they do not move until this is dropped, and no other
// code knows their address.
unsafe impl RawBuffer for HostMemory {
    fn len(&self) -> usize {
        self.len
    }
    fn uses(&self) -> &Uses {
        &self.uses
    }
    fn host(&self) -> Option<*mut u8> {
        Some(self.start.as_ptr())
    }
}
