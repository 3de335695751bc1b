//! What checks find, and what they let pass.

use super::tree::matches;

/// Something that should be absent, where it is, and what to do about it.
#[derive(Debug, PartialEq)]
pub struct Finding {
    pub path: String,
    pub line: usize,
    pub message: String,
    pub hint: &'static str,
}

/// A place where something is allowed that elsewhere is not.
pub struct Allow {
    pub glob: &'static str,
    /// Read by whoever asks why; printed by nothing.
    #[expect(dead_code, reason = "the reason is for the reader of the table")]
    pub because: &'static str,
}

pub fn allowed(table: &[Allow], path: &str) -> bool {
    table.iter().any(|allow| matches(allow.glob, path))
}
