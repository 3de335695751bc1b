//! Bytes for people: as the hub's messages have them.

pub use gristmill_hub::size;
