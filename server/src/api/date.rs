//! Moments, as interfaces write them.

use gristmill_llm::chat::strftime;
use std::time::{Duration, UNIX_EPOCH};

/// A moment, in seconds since 1970, as RFC 3339 has it.
pub fn date(seconds: u64) -> String {
    strftime("%Y-%m-%dT%H:%M:%SZ", UNIX_EPOCH + Duration::from_secs(seconds)).unwrap_or_default()
}
