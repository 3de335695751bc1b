//! Files that commands write: `-` is standard output.

use crate::failure::{Failure, Result};
use std::io::{self, Write};
use std::path::Path;

/// Can that be written? Asked before minutes are spent on it.
pub fn check(path: &Path) -> Result {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) || path.is_dir() {
        return Err(Failure::new(
            format_args!("cannot write {}", path.display()),
            "give a file in a folder that is there",
        ));
    }
    Ok(())
}

/// Writes it.
pub fn write(path: &Path, text: &str) -> Result {
    if path.as_os_str() == "-" {
        return Ok(io::stdout().lock().write_all(text.as_bytes())?);
    }
    std::fs::write(path, text).map_err(|e| Failure::file("write", path, e))?;
    say!("{} written", path.display());
    Ok(())
}
