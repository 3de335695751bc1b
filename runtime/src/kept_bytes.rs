//! Bytes in host memory that devices copy from.

use crate::buffer::Buffer;
use crate::error::Error;
use crate::lease::{Lease, Use};
use std::any::Any;
use std::ops::Range;

/// Bytes in host memory that [`Device::restore`](crate::Device::restore) copies from: a copy of a
/// buffer's, or those of a buffer in host memory.
pub trait KeptBytes: Any + Send + Sync {
    /// Returns the kept bytes, as many as the buffer had.
    fn bytes(&self) -> &[u8];
    /// Returns a range of them.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range does not lie in them.
    fn part(&self, range: Range<usize>) -> Result<&[u8], Error> {
        let part = self.bytes().get(range);
        part.ok_or_else(|| Error::invalid("restoring", "bytes that were not kept"))
    }
}

impl KeptBytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// The bytes of a buffer in host memory. Nothing writes to them as long as this lives.
pub struct HostBytes {
    begin: *const u8,
    len: usize,
    /// Keeps the allocation, and excludes writers.
    _lease: Lease,
}

// SAFETY: the bytes may be read from any thread (`RawBuffer`), and the lease excludes writers.
unsafe impl Send for HostBytes {}
// SAFETY: as above.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    /// Keeps the bytes of a buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is not in the host's memory, or is being written.
    pub fn new(buffer: &Buffer) -> Result<HostBytes, Error> {
        let what = "keeping";
        let begin = buffer.host();
        let begin =
            begin.ok_or_else(|| Error::invalid(what, "the buffer is not in the host's memory"))?;
        Ok(HostBytes {
            begin,
            len: buffer.len(),
            _lease: buffer.lease(what, 0, buffer.len(), Use::Read)?,
        })
    }
}

impl KeptBytes for HostBytes {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the allocation, which the lease keeps alive and unwritten.
        unsafe { std::slice::from_raw_parts(self.begin, self.len) }
    }
}
