//! Reads of a file at an offset, which share no position.

use std::fs::File;
use std::io;

/// Fills `out` from byte `offset` of a file; an error if the range is not all there.
#[cfg(not(target_family = "wasm"))]
pub fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

/// Fails: a page opens no files by path.
#[cfg(target_family = "wasm")]
pub fn read_exact_at(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
