//! Formats sizes in bytes, as the hub's messages do.

pub use gristmill_hub::size;
