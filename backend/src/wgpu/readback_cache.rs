//! What is known of a buffer that steps tell the host, without asking the adapter.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes of a buffer at the end of the last step that wrote it and has been waited for; none where that is not known.
#[derive(Default)]
pub struct Told(Mutex<Option<Vec<u8>>>);

impl Told {
    fn bytes(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Something other than such a step writes the buffer.
    pub fn forget(&self) {
        *self.bytes() = None;
    }
    /// A step has ended that wrote these.
    pub fn set(&self, bytes: &[u8]) {
        let mut known = self.bytes();
        let known = known.get_or_insert_default();
        known.clear();
        known.extend_from_slice(bytes);
    }
    /// Copies bytes from one on, if they are known.
    pub fn read(&self, at: usize, data: &mut [u8]) -> bool {
        match self.bytes().as_deref().and_then(|bytes| bytes.get(at..at + data.len())) {
            Some(bytes) => data.copy_from_slice(bytes),
            None => return false,
        }
        true
    }
}
