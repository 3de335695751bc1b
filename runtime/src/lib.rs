//! Device runtime: buffers, loaded programs, capture and replay, on-disk stores.
//! Independent of the compiler.

mod buffer;
mod device;
mod error;
pub mod image;
pub mod index;
pub mod lease;
pub mod memory;
pub mod staging;
pub mod store;

pub use buffer::{Buffer, View};
pub use device::{
    CopySpan, Device, KeptBytes, Kernel, Launch, LoadedProgram, Memory, Replay, Span, StepTrace,
};
pub use error::Error;
pub use lease::{DeviceId, RawBuffer};
