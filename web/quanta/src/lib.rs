//! The one type of the crate `quanta` that `egg` uses.
//!
//! The published crate reads the clock of a page through wasm-bindgen, and so needs
//! a tool after the linker; this one reads it as all other crates of the workspace do.

pub use gristmill_uop::clock::Instant;
