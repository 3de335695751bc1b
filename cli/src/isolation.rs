//! The process that chat templates of files run in: this program under another word.

use crate::failure::{Failure, Result};
use gristmill_llm::chat::{Helper, Isolation};
use std::path::{Path, PathBuf};

/// What the helper is started with. It is no command: no help, no manual page and no completion knows it.
const WORD: &str = "render-template";

/// Is this process a helper?
pub fn is_helper() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == WORD)
}

/// Where templates of files run.
pub fn isolation() -> Result<Isolation> {
    Ok(Isolation::Helper(Helper::new(own()?, [WORD])))
}

/// This program.
fn own() -> Result<PathBuf> {
    // Not by its name where that can be helped: another version may be there by now, or none.
    let running = Path::new("/proc/self/exe");
    if running.exists() {
        return Ok(running.to_owned());
    }
    std::env::current_exe().map_err(|error| {
        Failure::new(
            format_args!("the file of this program cannot be found: {error}"),
            "chat templates run in a second process of it: start it by its path",
        )
    })
}
