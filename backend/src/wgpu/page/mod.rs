//! GPUs through a browser's WebGPU, with the kernels of [`super::dialect`].
//!
//! The page opens the adapter before the program runs, and holds its objects; here they are
//! numbers. Reading waits for the GPU: the browser suspends the program meanwhile (JavaScript
//! Promise Integration), so that all of it stays synchronous.

mod device;
mod gpu;
mod memory;
mod replay;

pub use device::WebGpuDevice;
