//! `xtask bless`: reruns the tests with snapshots in update mode.

use crate::shell;
use anyhow::Result;

#[derive(clap::Args)]
pub struct Options {
    /// Arguments for `cargo test` after `--`, in place of
    /// `--workspace`: `cargo xtask bless -- -p gristmill-uop`
    #[arg(last = true)]
    test: Vec<String>,
}

/// Returns true if every test passed after the snapshots were rewritten.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    let before = changes(&root)?;
    let mut test = shell::cargo(&root);
    // A failing test binary must not hide the snapshots of later ones.
    test.args(["test", "--no-fail-fast"]);
    if options.test.is_empty() {
        test.arg("--workspace");
    } else {
        test.args(&options.test);
    }
    test.env("INSTA_UPDATE", "always").env("GRISTMILL_BLESS", "1");
    let passed = test.status()?.success();

    let after = changes(&root)?;
    eprintln!("\nbless: the tree after it (git status; * = new in this run)");
    for line in &after {
        println!("{} {line}", if before.contains(line) { " " } else { "*" });
    }
    if after.is_empty() {
        eprintln!("nothing differs from the commit");
    }
    if after.iter().any(|line| line.ends_with(".pending-snap")) {
        eprintln!(
            "hint: inline snapshots are in .pending-snap files; `cargo insta accept` writes them into the source"
        );
    }
    if !passed {
        eprintln!("hint: some tests fail for a reason other than a snapshot, see above");
    }
    Ok(passed)
}

fn changes(root: &std::path::Path) -> Result<Vec<String>> {
    let status = shell::stdout(shell::git(root).args(["status", "--porcelain", "--untracked-files=all"]))?;
    Ok(status.lines().map(str::to_owned).collect())
}
