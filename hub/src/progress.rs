//! Progress events of downloads and checks.

use crate::error::Error;
use std::path::Path;

/// An event of a download or a check.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Bytes of a file that are on the disk.
    Fetched {
        /// Path in the repository.
        file: &'a str,
        /// Bytes on the disk.
        done: u64,
        /// Size of the whole file in bytes.
        total: u64,
    },
    /// Bytes of an existing file that were hashed to verify its checksum.
    Checked {
        /// Path in the repository.
        file: &'a str,
        /// Bytes hashed until now.
        done: u64,
        /// Bytes to hash in all.
        total: u64,
    },
    /// A downloaded file has changed since; it is downloaded again.
    Changed {
        /// Path in the store.
        file: &'a Path,
    },
    /// Files of the repository are left out because their names are unsafe or misleading.
    PassedOver {
        /// Number of such files.
        files: usize,
    },
    /// A file was verified, but its record cannot be updated: the next use hashes it again.
    Unrecorded {
        /// Path in the store.
        file: &'a Path,
        /// Error of writing the record.
        why: &'a std::io::Error,
    },
    /// A request or connection failed and will be retried.
    Again {
        /// Error of the failed attempt.
        why: &'a Error,
    },
}
