//! `xtask ci`: runs the merge gate (`.ci/run`), or the fast gate (`.ci/fast`).

use crate::shell;
use anyhow::Result;
use std::process::Command;

#[derive(clap::Args)]
pub struct Options {
    /// Run only format, tidy, clippy, unit tests and pass tests:
    /// under three minutes after a first build
    #[arg(long)]
    fast: bool,
}

/// Returns true if the gate passed.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    let gate = if options.fast { ".ci/fast" } else { ".ci/run" };
    Ok(Command::new(root.join(gate))
        .current_dir(&root)
        .status()?
        .success())
}
