//! Helper process for chat templates of model files: this program with a hidden first argument.

use crate::failure::{Failure, Result};
use gristmill_llm::chat::{Helper, Isolation};
use std::path::{Path, PathBuf};

/// First argument of the helper. It is not a command and appears in no help.
const WORD: &str = "render-template";

/// Whether this process is a helper.
pub fn is_helper() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == WORD)
}

/// Isolation of templates from model files.
pub fn isolation() -> Result<Isolation> {
    Ok(Isolation::Helper(Helper::new(own()?, [WORD])))
}

/// Path of this executable.
fn own() -> Result<PathBuf> {
    // The file at the original path may have been replaced or removed.
    let running = Path::new("/proc/self/exe");
    if running.exists() {
        return Ok(running.to_owned());
    }
    std::env::current_exe().map_err(|error| {
        Failure::new(
            format_args!("cannot find the executable of this process: {error}"),
            "chat templates run in a second process of it: start gristmill by its path",
        )
    })
}
