//! The device of a browser's tab: kernels are WebAssembly functions with SIMD.
//!
//! Linear code becomes a function ([`emit`]) instead of text, and the engine that runs the program
//! compiles it: the browser's on a page, an interpreter in tests. The functions use the memory of
//! the program itself, so that nothing is copied. A kernel runs all of its workgroups in one call.

mod code;
mod device;
mod emit;
mod engine;
#[cfg(target_family = "wasm")]
pub mod page;
mod replay;

pub use device::{WasmDevice, machine};
pub use emit::{MEMORY, function_name};
pub use engine::{Engine, EngineMemory, Features};
