//! NVIDIA GPUs: CUDA C kernels compiled by NVRTC; a step is one CUDA graph.
//!
//! The driver and NVRTC are loaded at run time; without them, opening the device returns an error
//! that says which is missing.
//!
//! A kernel's text is one `extern "C" __global__` function `NAME(T0 *p0, T1 *p1, …, const i64 *v)`:
//! a pointer for each of `Program::params`, then one to its variables in device memory, in the
//! order of `Program::vars`. It is launched with `Program::threads` threads, `Program::scratch`
//! bytes of dynamic shared memory, and at least `Program::groups` workgroups; surplus ones return
//! at once. From sm_90 on it may start before its predecessor has ended: each workgroup executes
//! `griddepcontrol.wait` before it reads data that may have changed, writes anything, or returns.

mod clocks;
mod context;
mod copies;
mod device;
pub mod dialect;
mod driver;
mod graph;
mod handle;
mod measure;
mod memory;
mod modules;
mod nvrtc;
mod peers;
mod replay;
mod step;

#[cfg(test)]
mod tests;

pub use device::CudaDevice;
pub use driver::present;
pub use nvrtc::{Cubin, Nvrtc};
