//! Interface of a WebAssembly engine: memory, modules and calls.

/// Instructions beyond SIMD that an engine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Relaxed SIMD: multiply-adds rounded once, and dot products of bytes.
    pub relaxed: bool,
}

/// Memory of an engine; freed on drop.
pub trait EngineMemory: Send + Sync {
    /// Address in the host.
    fn host(&self) -> *mut u8;
    /// Address in the engine's memory.
    fn address(&self) -> u32;
}

/// An engine whose modules share one memory, which the host can access by address.
pub trait Engine: Send + Sync + 'static {
    /// Instructions that it has.
    fn features(&self) -> Features;
    /// Allocates zeros, aligned to 64 bytes; `None` if the memory is full.
    fn alloc(&self, bytes: usize) -> Option<Box<dyn EngineMemory>>;
    /// Compiles a module and returns the numbers of its functions
    /// ([`function_name`](super::function_name)).
    ///
    /// # Errors
    /// The engine's message.
    fn load(&self, module: &[u8], functions: usize) -> Result<Vec<u32>, String>;
    /// Calls a function with the addresses of its buffers' addresses, variables and scratch memory.
    ///
    /// # Errors
    /// The engine's message, when the function was stopped.
    fn call(&self, function: u32, arguments: [u32; 3]) -> Result<(), String>;
}
