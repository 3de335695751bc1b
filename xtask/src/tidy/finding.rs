//! Findings of checks, and their allow lists.

use super::tree::matches;

/// A violation of a check: its place, and a hint how to fix it.
#[derive(Debug, PartialEq)]
pub struct Finding {
    pub path: String,
    pub line: usize,
    pub message: String,
    pub hint: &'static str,
}

/// A path pattern for which a check makes an exception.
pub struct Allow {
    pub glob: &'static str,
    /// Reason, for readers of the table; never printed.
    #[expect(dead_code, reason = "the reason is for the reader of the table")]
    pub because: &'static str,
}

pub fn allowed(table: &[Allow], path: &str) -> bool {
    table.iter().any(|allow| matches(allow.glob, path))
}
