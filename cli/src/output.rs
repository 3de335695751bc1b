//! Output files of commands; `-` is standard output.

use crate::failure::{Failure, Result};
use std::io::{self, Write};
use std::path::Path;

/// Refuses a path in a missing folder, before minutes of work.
pub fn check(path: &Path) -> Result {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) || path.is_dir() {
        return Err(Failure::new(
            format_args!("cannot write {}", path.display()),
            "give a file in an existing folder",
        ));
    }
    Ok(())
}

/// Writes text to a file, or to standard output for `-`.
pub fn write(path: &Path, text: &str) -> Result {
    if path.as_os_str() == "-" {
        return Ok(io::stdout().lock().write_all(text.as_bytes())?);
    }
    std::fs::write(path, text).map_err(|e| Failure::file("write", path, e))?;
    say!("wrote {}", path.display());
    Ok(())
}
