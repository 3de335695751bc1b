//! `xtask ci`: the checks that a change has to pass, the whole gate or the part that answers within minutes.

use crate::shell;
use anyhow::Result;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Options {
    /// Only format, clippy, tidy, and the unit and pass tests: under three minutes after a first build
    #[arg(long)]
    fast: bool,
}

/// A named step and the arguments of cargo that run it.
type Step = (&'static str, &'static [&'static str]);

const FAST: &[Step] = &[
    ("format", &["fmt", "--all", "--check"]),
    ("tidy", &["run", "--quiet", "--package", "xtask", "--", "tidy"]),
    ("clippy", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    ("unit tests", &["test", "--quiet", "--workspace", "--lib", "--bins"]),
    ("pass tests", &["test", "--quiet", "--package", "gristmill-tensor", "--test", "passes"]),
];

/// True if every step passed. The first that fails ends the run.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    if !options.fast {
        return Ok(Command::new(root.join(".ci/run")).current_dir(&root).status()?.success());
    }
    let start = Instant::now();
    for (name, arguments) in FAST {
        if !passes(&root, name, arguments)? {
            return Ok(false);
        }
    }
    eprintln!("ci: passed in {} s; `cargo xtask ci` runs the whole gate", start.elapsed().as_secs());
    Ok(true)
}

fn passes(root: &Path, name: &str, arguments: &[&str]) -> Result<bool> {
    let start = Instant::now();
    eprintln!("ci: {name}: cargo {}", arguments.join(" "));
    let passed = shell::cargo(root).args(arguments).status()?.success();
    let verb = if passed { "passed" } else { "failed" };
    eprintln!("ci: {name} {verb} after {:.1} s", start.elapsed().as_secs_f64());
    Ok(passed)
}
