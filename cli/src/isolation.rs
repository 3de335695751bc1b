//! Helper processes for chat templates of model files and for clients' grammars: this program with
//! a hidden first argument.

use crate::failure::{Failure, Result};
use gristmill_llm::chat::{Helper, Isolation};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// First argument of the helper for templates. It is not a command and appears in no help.
const WORD: &str = "render-template";

/// Returns the program of this process if it is a helper.
pub fn helper() -> Option<fn() -> ExitCode> {
    let word = std::env::args_os().nth(1)?;
    match word.to_str()? {
        WORD => Some(gristmill_llm::chat::helper),
        gristmill_server::GRAMMAR_HELPER => Some(gristmill_server::grammar_helper),
        _ => None,
    }
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
