//! `xtask ci`: runs the merge gate (`.ci/run`), or a subset that takes minutes.

use crate::shell;
use anyhow::Result;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Options {
    /// Run only format, tidy, clippy, unit tests and pass tests:
    /// under three minutes after a first build
    #[arg(long)]
    fast: bool,
}

/// Name of a step and its cargo arguments.
type Step = (&'static str, &'static [&'static str]);

const FAST: &[Step] = &[
    ("format", &["fmt", "--all", "--check"]),
    (
        "tidy",
        &["run", "--quiet", "--package", "xtask", "--", "tidy"],
    ),
    (
        "clippy",
        &[
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
    ),
    (
        "unit tests",
        &["test", "--quiet", "--workspace", "--lib", "--bins"],
    ),
    (
        "pass tests",
        &[
            "test",
            "--quiet",
            "--package",
            "gristmill-compiler",
            "--test",
            "passes",
        ],
    ),
];

/// Returns true if every step passed; stops at the first failure.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    if !options.fast {
        return Ok(Command::new(root.join(".ci/run"))
            .current_dir(&root)
            .status()?
            .success());
    }
    let start = Instant::now();
    for (name, arguments) in FAST {
        if !passes(&root, name, arguments)? {
            return Ok(false);
        }
    }
    eprintln!(
        "ci: passed in {} s; `cargo xtask ci` runs the whole gate",
        start.elapsed().as_secs()
    );
    Ok(true)
}

fn passes(root: &Path, name: &str, arguments: &[&str]) -> Result<bool> {
    let start = Instant::now();
    eprintln!("ci: {name}: cargo {}", arguments.join(" "));
    let passed = shell::cargo(root).args(arguments).status()?.success();
    let verb = if passed { "passed" } else { "failed" };
    eprintln!(
        "ci: {name} {verb} after {:.1} s",
        start.elapsed().as_secs_f64()
    );
    Ok(passed)
}
