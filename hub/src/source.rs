//! Interface of servers of files: the hub and any other HTTP server.

use crate::error::Error;
use std::io::Read;
use std::time::Duration;
use ureq::Body;
use ureq::http::{Response, header};

/// Body of a response and the offset in the file at which it begins.
pub(crate) struct FileBytes {
    pub from: u64,
    pub reader: Box<dyn Read>,
}

/// One version of the files of a repository or of a server.
pub(crate) trait FileSource {
    /// Requests the bytes of a file from offset `from`; the answer may begin earlier.
    fn bytes(&self, path: &str, from: u64) -> Result<FileBytes, Error>;
    /// Returns the error of a broken connection, for which a retry may succeed.
    fn broken(&self, message: String) -> Error;
    /// Pause before the first retry of a failed request.
    fn pause(&self) -> Duration;
    /// Time in which a connection must bring some bytes.
    fn patience(&self) -> Duration;
}

/// Parses `Content-Range: bytes 5-9/10`: the first offset and the size of the whole, if known.
pub(crate) fn range(response: &Response<Body>) -> Option<(u64, Option<u64>)> {
    let range = response
        .headers()
        .get(header::CONTENT_RANGE)?
        .to_str()
        .ok()?;
    let (part, whole) = range.strip_prefix("bytes ")?.split_once('/')?;
    Some((part.split_once('-')?.0.parse().ok()?, whole.parse().ok()))
}
