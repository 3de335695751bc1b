//! Device runtime: buffers, loaded programs, capture and replay, on-disk stores.
//! Independent of the compiler.

mod buffer;
mod device;
mod error;
#[cfg(not(target_family = "wasm"))]
pub mod image;
pub mod index;
mod kept_bytes;
pub mod lease;
pub mod memory;
pub mod staging;
pub mod store;

pub use buffer::{Buffer, View};
pub use device::{
    CopySpan, Device, Kernel, Launch, LoadedProgram, Memory, Replay, Span, StepTrace,
};
pub use error::Error;
pub use kept_bytes::{HostBytes, KeptBytes};
pub use lease::{DeviceId, RawBuffer};
