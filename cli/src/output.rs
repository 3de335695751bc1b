//! Output files of commands; `-` is standard output.

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

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

/// Refuses a path in a missing folder, and an existing file without `force`.
pub fn check_new(path: &Path, force: bool) -> Result {
    check(path)?;
    if path.exists() && !force {
        return Err(Failure::new(
            format_args!("{} exists", path.display()),
            "choose another -o, or replace it with --force",
        ));
    }
    Ok(())
}

/// Writes a large file beside its place, and moves it there when it is complete. `write` calls its
/// second argument with the number of bytes written so far, of `total`, and stops if that returns
/// false; `what` is the verb of the progress bar.
pub fn write_whole(
    path: &Path,
    interrupt: &Interrupt,
    (what, total): (&'static str, u64),
    write: impl FnOnce(BufWriter<&File>, &mut dyn FnMut(u64) -> bool) -> Result,
) -> Result {
    let failed = |error: io::Error| Failure::file("write", path, error);
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    let beside = PathBuf::from(beside);
    let file = File::create(&beside).map_err(failed)?;
    let bar = progress::bytes(what, total);
    interrupt.begin();
    let mut goes_on = |written| {
        bar.set_position(written);
        !interrupt.is_asked()
    };
    let written = write(BufWriter::with_capacity(1 << 20, &file), &mut goes_on);
    let written = written.and_then(|()| {
        file.sync_all().map_err(failed)?;
        fs::rename(&beside, path).map_err(failed)
    });
    interrupt.end();
    bar.finish_and_clear();
    // An incomplete file is removed.
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}
