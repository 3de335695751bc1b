//! Stand-in for the directory of a store where there are no files: it cannot be opened.

use crate::Error;
use std::convert::Infallible;
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

pub(super) fn name_of_user() -> Option<String> {
    None
}

pub(super) fn fault(path: &Path, message: impl ToString) -> Error {
    Error::Cache {
        path: path.into(),
        message: message.to_string(),
    }
}

pub(super) fn is_no_entry(error: Infallible) -> bool {
    match error {}
}

/// A directory; there is none.
#[derive(Debug)]
pub(super) struct NoFolder(Infallible);

/// A file of a directory.
pub(super) struct NoEntry {
    pub name: String,
    pub bytes: u64,
    pub modified: SystemTime,
}

impl NoFolder {
    pub fn open(path: &Path, _: fn(&str) -> bool) -> Result<NoFolder, Error> {
        Err(fault(path, "there are no files here"))
    }
    pub fn path(&self) -> &Path {
        match self.0 {}
    }
    pub fn read(&self, _: &str, _: u64) -> Result<Option<(File, Vec<u8>)>, Infallible> {
        match self.0 {}
    }
    pub fn write(&self, _: &str, _: &[&[u8]]) -> Result<(), Error> {
        match self.0 {}
    }
    pub fn remove(&self, _: &str) -> bool {
        match self.0 {}
    }
    pub fn entries(&self, _: fn(&str) -> bool) -> Vec<NoEntry> {
        match self.0 {}
    }
    pub fn temporary(&self) -> Result<NoTemporary, Error> {
        match self.0 {}
    }
}

/// A private directory for a compiler's files; there is none.
pub struct NoTemporary(Infallible);

impl NoTemporary {
    pub(super) fn elsewhere() -> Result<NoTemporary, Error> {
        Err(fault(Path::new("none"), "there are no files here"))
    }
    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        match self.0 {}
    }
}
