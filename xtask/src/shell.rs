//! Helpers that run other programs.

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the checkout that contains the current directory.
pub fn root() -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    let out = stdout(git(&here).args(["rev-parse", "--show-toplevel"]))?;
    Ok(PathBuf::from(out.trim_end()))
}

/// Returns a `git` command in `dir`. Git hooks set variables that
/// would override the folder, so they are removed.
pub fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(dir)
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE");
    command
}

/// Returns a command for the `cargo` that started xtask, in `dir`.
pub fn cargo(dir: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(dir);
    command
}

/// Runs a command with inherited output; fails unless the exit status is zero.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// Returns standard output as text. Fails, quoting standard error, unless the exit status is zero.
pub fn stdout(command: &mut Command) -> Result<String> {
    let out = command
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !out.status.success() {
        bail!(
            "{command:?}: {}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim_end()
        );
    }
    String::from_utf8(out.stdout).with_context(|| format!("{command:?}: output is not UTF-8"))
}

/// Returns the checkout's revision, with a note if tracked files are modified.
pub fn commit(root: &Path) -> Result<String> {
    let rev = stdout(git(root).args(["rev-parse", "--short=12", "HEAD"]))?;
    let changed = stdout(git(root).args(["status", "--porcelain", "--untracked-files=no"]))?;
    Ok(format!(
        "{}{}",
        rev.trim_end(),
        if changed.is_empty() {
            ""
        } else {
            ", with changes"
        }
    ))
}

/// Returns the absolute path of an existing program.
pub fn program(path: &Path, hint: &str) -> Result<PathBuf> {
    if !path.is_file() {
        bail!("there is no program {}\nhint: {hint}", path.display());
    }
    // A bare name would be searched in PATH.
    path.canonicalize()
        .with_context(|| format!("cannot open {}", path.display()))
}

/// Builds this tree's `gristmill` in release mode and returns its path.
pub fn gristmill(root: &Path) -> Result<PathBuf> {
    eprintln!("building gristmill");
    run(cargo(root).args(["build", "--quiet", "--release", "--package", "gristmill"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |dir| root.join(dir));
    let path = target
        .join("release")
        .join(format!("gristmill{}", std::env::consts::EXE_SUFFIX));
    program(
        &path,
        "cargo built it elsewhere: give its path with --gristmill",
    )
}

/// Writes a report as JSON.
pub fn save(path: &Path, report: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    fs::write(path, text).map_err(|e| {
        anyhow!(
            "cannot write {}: {e}\nhint: -o needs a file in an existing folder",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_command_is_named() {
        let error = program(Path::new("no/such/program"), "build it")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no/such/program") && error.contains("hint: build it"),
            "{error}"
        );
    }
}
