//! Random identifiers of responses, messages and calls.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a unique identifier with the given prefix and 96 random bits.
pub fn fresh_id(prefix: &str) -> String {
    // Every RandomState has keys of its own.
    let part = || RandomState::new().build_hasher().finish();
    format!("{prefix}{:016x}{:08x}", part(), part() as u32)
}
