//! What a fetch or a check tells while it goes on.

use crate::error::Error;
use std::path::Path;

/// What is going on.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Bytes of a file that are there, of how many.
    Fetched {
        /// Its path.
        file: &'a str,
        /// Bytes there are.
        done: u64,
        /// Bytes there will be.
        total: u64,
    },
    /// Bytes that were there before are being read for the checksum.
    Checked {
        /// The file's path.
        file: &'a str,
        /// Bytes read.
        done: u64,
        /// Bytes to read.
        total: u64,
    },
    /// A file that was fetched has changed since; it is fetched again.
    Changed {
        /// Where it is.
        file: &'a Path,
    },
    /// Files of the hub with names that do not show what they are: they are not fetched.
    PassedOver {
        /// How many.
        files: usize,
    },
    /// A file that was read again is the same, and that cannot be written down: the next use reads it again.
    Unrecorded {
        /// Where it is.
        file: &'a Path,
        /// Why not.
        why: &'a std::io::Error,
    },
    /// The connection broke; it is tried again.
    Again {
        /// What broke.
        why: &'a Error,
    },
}
