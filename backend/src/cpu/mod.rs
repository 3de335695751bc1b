//! The CPU: C kernels compiled by the machine's compiler, run by a persistent team of threads.

mod affinity;
#[cfg(target_arch = "x86_64")]
mod amx;
mod cc;
mod child;
mod code_index;
mod device;
pub mod dialect;
mod isa;
pub mod measure;
mod memory;
mod processor;
mod replay;
mod team;
mod unit;

pub use cc::{Cc, QUICK_FLAG};
pub use device::CpuDevice;
pub use isa::{Isa, IsaInfo, TABLE as ISAS};
pub use team::{MAX_WORKERS as MAX_THREADS, Team, Worker};
// For devices that compile as this one does but run kernels elsewhere, as the
// conformance suite's emulator.
pub use unit::{Unit, partition};

#[cfg(test)]
mod tests;
