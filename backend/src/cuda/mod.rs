//! NVIDIA GPUs: CUDA C kernels compiled by NVRTC, a step as one graph of the driver's.
//!
//! The driver and NVRTC are looked for at run time: without them the program runs, and says what is missing.
//!
//! A kernel's text is one `extern "C" __global__` function `NAME(T0 *p0, T1 *p1, …, const i64 *v)`: a pointer for each of
//! `Program::params`, then one to its variables in device memory, in the order of `Program::vars`. It is launched with
//! `Program::threads` threads, `Program::scratch` bytes of dynamic shared memory, and at least as many workgroups as
//! `Program::groups` says; those beyond return at once. From sm_90 on it may start before its predecessor has ended: every workgroup
//! executes `griddepcontrol.wait` before it reads what may have changed, writes anything, or returns.

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
mod replay;
mod step;

#[cfg(test)]
mod tests;

pub use device::CudaDevice;
pub use driver::present;
pub use nvrtc::{Cubin, Nvrtc};
