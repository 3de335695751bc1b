//! The engine of a page: the browser's own, reached through the loader's functions.

use super::engine::{Engine, EngineMemory, Features};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

#[link(wasm_import_module = "gristmill")]
unsafe extern "C" {
    /// Compiles a module and adds its functions to this module's table; returns the index of the
    /// first, or -1 after an error, whose text [`take_message`] returns.
    fn load_module(module: *const u8, len: usize, functions: u32) -> i32;
    /// Writes the text of the last error, at most `len` bytes; returns its length.
    fn take_message(to: *mut u8, len: usize) -> usize;
    /// 1 if the browser has relaxed SIMD.
    safe fn has_relaxed_simd() -> u32;
}

/// Longest text of an error, bytes.
const MESSAGE: usize = 1 << 10;
/// Alignment of memory, bytes: a cache line.
const ALIGNMENT: usize = 64;

/// The browser's engine.
pub struct PageEngine {
    features: Features,
}

impl PageEngine {
    /// Creates the engine of this page.
    #[expect(clippy::new_without_default, reason = "it asks the browser")]
    pub fn new() -> PageEngine {
        PageEngine {
            features: Features {
                relaxed: has_relaxed_simd() != 0,
            },
        }
    }
}

struct PageMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation belongs to no thread.
unsafe impl Send for PageMemory {}
// SAFETY: as above; its bytes are accessed only by address, under the rules of `RawBuffer`.
unsafe impl Sync for PageMemory {}

impl EngineMemory for PageMemory {
    fn host(&self) -> *mut u8 {
        self.start.as_ptr()
    }
    fn address(&self) -> u32 {
        self.start.as_ptr().addr() as u32
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// A kernel's function: addresses of its buffers' addresses, variables and scratch memory.
type KernelPointer = unsafe extern "C" fn(u32, u32, u32);

impl Engine for PageEngine {
    fn features(&self) -> Features {
        self.features
    }
    fn alloc(&self, bytes: usize) -> Option<Box<dyn EngineMemory>> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Box::new(PageMemory { start, layout }))
    }
    fn load(&self, module: &[u8], functions: usize) -> Result<Vec<u32>, String> {
        // SAFETY: the bytes of the module, which are only read.
        let first = unsafe { load_module(module.as_ptr(), module.len(), functions as u32) };
        if let Ok(first) = u32::try_from(first) {
            return Ok((first..first + functions as u32).collect());
        }
        let mut message = vec![0; MESSAGE];
        // SAFETY: as many bytes are there.
        let len = unsafe { take_message(message.as_mut_ptr(), MESSAGE) };
        message.truncate(len);
        Err(String::from_utf8_lossy(&message).into_owned())
    }
    fn call(&self, function: u32, [buffers, variables, scratch]: [u32; 3]) -> Result<(), String> {
        // SAFETY: an index of the table is a function pointer on wasm32, and `load` put a kernel's
        // function there. A kernel accesses only its arguments.
        unsafe {
            let function: KernelPointer = std::mem::transmute(function as usize);
            function(buffers, variables, scratch);
        }
        Ok(())
    }
}
