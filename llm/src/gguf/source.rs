//! Sources of a GGUF file's bytes: a file, memory, or a generator.

use super::error::{Error, Result};
use crate::read_exact::read_exact_at;
use gristmill_runtime::memory;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Random access to the bytes of one file, from several threads at once.
pub trait ByteSource: Send + Sync {
    /// Returns the length in bytes.
    fn size(&self) -> u64;
    /// Fills `out` starting at byte `offset`; returns an error if the range is not all there.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Hints that these bytes will not be read again soon, so that the page cache may drop them.
    fn release(&self, _: Range<u64>) {}
}

/// A regular file read with `pread`. Without a mapping, truncation of a file in use gives an error
/// and not a signal.
pub(super) struct FileSource {
    file: File,
    size: u64,
}

impl FileSource {
    pub fn open(path: &Path) -> Result<Self> {
        // Checked before opening, because opening a pipe blocks until it has a writer.
        if !std::fs::metadata(path)
            .map_err(Error::io("cannot open"))?
            .is_file()
        {
            return Err(Error::NotAFile);
        }
        Self::from_file(File::open(path).map_err(Error::io("cannot open"))?)
    }
    pub fn from_file(file: File) -> Result<Self> {
        let size = file.metadata().map_err(Error::io("cannot open"))?.len();
        Ok(Self { file, size })
    }
}

impl ByteSource for FileSource {
    fn size(&self) -> u64 {
        self.size
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        read_exact_at(&self.file, out, offset)
    }
    fn release(&self, range: Range<u64>) {
        memory::release(&self.file, range);
    }
}

/// Bytes in memory: `&'static [u8]`, `Arc<[u8]>`, `Vec<u8>`.
pub(super) struct MemorySource<T>(pub T);

impl<T: AsRef<[u8]> + Send + Sync> ByteSource for MemorySource<T> {
    fn size(&self) -> u64 {
        self.0.as_ref().len() as u64
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|s| self.0.as_ref().get(s..s.checked_add(out.len())?));
        out.copy_from_slice(range.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
