//! Host copy of a readback buffer.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a buffer after the last finished step that wrote it; None if unknown.
#[derive(Default)]
pub struct ReadbackCache(Mutex<Option<Vec<u8>>>);

impl ReadbackCache {
    fn bytes(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Invalidates the copy before another write to the buffer.
    pub fn invalidate(&self) {
        *self.bytes() = None;
    }
    /// Sets the bytes that a finished step wrote.
    pub fn set(&self, bytes: &[u8]) {
        let mut known = self.bytes();
        let known = known.get_or_insert_default();
        known.clear();
        known.extend_from_slice(bytes);
    }
    /// Copies bytes from offset `at`. Returns false if they are unknown.
    pub fn read(&self, at: usize, data: &mut [u8]) -> bool {
        match self
            .bytes()
            .as_deref()
            .and_then(|bytes| bytes.get(at..at + data.len()))
        {
            Some(bytes) => data.copy_from_slice(bytes),
            None => return false,
        }
        true
    }
}
