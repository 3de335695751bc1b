//! Identifiers.

use std::hash::{BuildHasher, Hasher, RandomState};

/// An identifier that nothing else has.
pub fn fresh_id(prefix: &str) -> String {
    // Every RandomState has keys of its own.
    let part = || RandomState::new().build_hasher().finish();
    format!("{prefix}{:016x}{:08x}", part(), part() as u32)
}
