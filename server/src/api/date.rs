//! Timestamps in the format of the interfaces.

use gristmill_llm::chat::strftime;
use std::time::{Duration, UNIX_EPOCH};

/// Formats seconds since the Unix epoch as an RFC 3339 timestamp in UTC.
pub fn date(seconds: u64) -> String {
    strftime(
        "%Y-%m-%dT%H:%M:%SZ",
        UNIX_EPOCH + Duration::from_secs(seconds),
    )
    .unwrap_or_default()
}
