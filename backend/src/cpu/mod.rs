//! The CPU: C kernels compiled by the machine's compiler, run by a persistent team of threads.

mod cc;
mod device;
pub mod dialect;
mod isa;
mod memory;
mod replay;
mod team;
mod unit;

pub use cc::Cc;
pub use device::CpuDevice;
pub use isa::{Isa, IsaInfo, TABLE as ISAS};
pub use team::{MOST as MOST_THREADS, Team, Worker};

#[cfg(test)]
mod tests;
