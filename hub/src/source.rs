//! Where the bytes of files come from, whoever serves them.

use crate::error::Error;
use std::io::Read;
use std::time::Duration;
use ureq::Body;
use ureq::http::{Response, header};

/// An answer: from where its bytes are, and they.
pub(crate) struct FileBytes {
    pub from: u64,
    pub reader: Box<dyn Read>,
}

/// One version of the files of a repository or of a server.
pub(crate) trait FileSource {
    /// Bytes of a file from `from` on; they may begin earlier.
    fn bytes(&self, path: &str, from: u64) -> Result<FileBytes, Error>;
    /// The error of a connection that broke, after which another may do.
    fn broken(&self, message: String) -> Error;
    /// How long to wait before a request that failed is sent again.
    fn pause(&self) -> Duration;
}

/// Where a part begins, and how long the whole is: `Content-Range: bytes 5-9/10`.
pub(crate) fn range(response: &Response<Body>) -> Option<(u64, Option<u64>)> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (part, whole) = range.strip_prefix("bytes ")?.split_once('/')?;
    Some((part.split_once('-')?.0.parse().ok()?, whole.parse().ok()))
}
