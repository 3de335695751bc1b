//! `xtask kernels-diff REV`: the kernels of this tree against those of another revision.
//!
//! Both revisions are built in one target directory, `target/kernels-diff`, so that their common dependencies are
//! compiled once; the other revision is checked out in a git worktree below it, which is removed whatever happens.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One model of each shape the compiler meets: dense MLA, MoE without a query rank, MoE with one.
const MODELS: &[&str] = &["synth:youtu-llm-2b:q4_0", "synth:deepseek-v2-lite:q4_0", "synth:glm-4.7-flash:q4_0"];

#[derive(clap::Args)]
pub struct Options {
    /// The revision to compare with
    rev: String,
    /// Models: files or synth:PRESET:QUANT
    #[arg(default_values_t = MODELS.iter().map(|m| m.to_string()))]
    models: Vec<String>,
    /// Devices to compile for; `null`, which stands for a GPU, is left out where a revision does not have it
    #[arg(long = "device", default_values_t = ["cpu".to_string(), "null".to_string()])]
    devices: Vec<String>,
    /// Further arguments for both `gristmill kernels`
    #[arg(last = true)]
    extra: Vec<String>,
}

/// True if no kernel differs.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    let target = root.join("target").join("kernels-diff");
    fs::create_dir_all(&target)?;
    let rev = format!("{}^{{commit}}", options.rev);
    let rev = shell::stdout(shell::git(&root).args(["rev-parse", "--verify", "--quiet", "--end-of-options", &rev]))
        .with_context(|| format!("{} is not a revision", options.rev))?;
    let rev = rev.trim_end();

    // An interrupt reaches the child too; its failure then unwinds through `Worktree::drop`.
    ctrlc::set_handler(|| {})?;
    let there = {
        let worktree = Worktree::add(&root, target.join("worktree"), rev)?;
        build(&worktree.path, &target, "there")?
    };
    let here = build(&root, &target, "here")?;

    let text = target.join("text");
    let _ = fs::remove_dir_all(&text);
    let mut same = true;
    for device in &options.devices {
        if device == "null" && !(has_null(&there) && has_null(&here)) {
            eprintln!("kernels-diff: skipping --device null, which one of the revisions does not have");
            continue;
        }
        for model in &options.models {
            let name = file_name(model, device);
            let old = kernels(&there, model, device, &options.extra);
            let new = kernels(&here, model, device, &options.extra)
                .with_context(|| format!("this tree cannot compile {model} for {device}"))?;
            // A revision from before a model or an option has no kernels for it: everything is new.
            let old = old.unwrap_or_else(|error| {
                eprintln!("kernels-diff: {model} on {device} fails at {}, taken as empty: {error:#}", options.rev);
                String::new()
            });
            let old = write(&text.join("there").join(&name), &old)?;
            let new = write(&text.join("here").join(&name), &new)?;
            same &= diff(&old, &new, &format!("{name} ({})", options.rev), &format!("{name} (this tree)"))?;
        }
    }
    eprintln!("kernels-diff: {}", if same { "no kernel differs" } else { "kernels differ" });
    Ok(same)
}

/// A git worktree that lasts as long as this value.
struct Worktree {
    root: PathBuf,
    path: PathBuf,
}

impl Worktree {
    fn add(root: &Path, path: PathBuf, rev: &str) -> Result<Worktree> {
        let worktree = Worktree { root: root.to_owned(), path };
        // What a killed run may have left.
        worktree.remove();
        shell::run(shell::git(root).args(["worktree", "add", "--quiet", "--detach"]).arg(&worktree.path).arg(rev))?;
        Ok(worktree)
    }

    fn remove(&self) {
        // Nothing to report: there may be no such worktree, and then these have nothing to do.
        let _ = shell::git(&self.root).args(["worktree", "remove", "--force"]).arg(&self.path).output();
        let _ = fs::remove_dir_all(&self.path);
        let _ = shell::git(&self.root).args(["worktree", "prune"]).output();
    }
}

impl Drop for Worktree {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Builds `gristmill` and copies it aside, since the next build overwrites it.
fn build(dir: &Path, target: &Path, name: &str) -> Result<PathBuf> {
    eprintln!("kernels-diff: building {name}");
    shell::run(
        shell::cargo(dir)
            .args(["build", "--quiet", "--release", "--package", "gristmill", "--bin", "gristmill"])
            .env("CARGO_TARGET_DIR", target),
    )?;
    let exe = std::env::consts::EXE_SUFFIX;
    let copy = target.join(format!("gristmill-{name}{exe}"));
    fs::copy(target.join("release").join(format!("gristmill{exe}")), &copy)?;
    Ok(copy)
}

/// Whether `--device` offers `null`, by the program's own help.
fn has_null(gristmill: &Path) -> bool {
    shell::stdout(Command::new(gristmill).args(["kernels", "--help"]))
        .is_ok_and(|help| help.split(|c: char| !c.is_alphanumeric()).any(|word| word == "null"))
}

fn kernels(gristmill: &Path, model: &str, device: &str, extra: &[String]) -> Result<String> {
    let mut command = Command::new(gristmill);
    command.args(["kernels", model, "--stage", "source", "--device", device]).args(extra);
    let text = shell::stdout(&mut command)?;
    if text.trim().is_empty() {
        bail!("{command:?} printed nothing");
    }
    Ok(text)
}

fn file_name(model: &str, device: &str) -> String {
    let model: String = model.chars().map(|c| if c.is_alphanumeric() || ".-_".contains(c) { c } else { '-' }).collect();
    format!("{model}.{device}.txt")
}

fn write(path: &Path, text: &str) -> Result<PathBuf> {
    fs::create_dir_all(path.parent().context("a file has a folder")?)?;
    fs::write(path, text)?;
    Ok(path.to_owned())
}

/// Prints the unified diff of two files; true if they are equal.
fn diff(old: &Path, new: &Path, old_label: &str, new_label: &str) -> Result<bool> {
    let mut command = Command::new("diff");
    command.args(["-u", "--label", old_label, "--label", new_label]).arg(old).arg(new);
    let status = command.status().context("cannot start `diff`; hint: install diffutils")?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => bail!("{command:?}: {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_becomes_one_file_name() {
        assert_eq!(file_name("synth:a-2b:q8_0", "cpu"), "synth-a-2b-q8_0.cpu.txt");
        assert_eq!(file_name("/models/a b.gguf", "null"), "-models-a-b.gguf.null.txt");
    }

    #[test]
    fn diff_tells_equal_from_different() -> Result<()> {
        let dir = std::env::temp_dir().join(format!("gristmill-diff-{}", std::process::id()));
        let a = write(&dir.join("a"), "one\n")?;
        let b = write(&dir.join("b"), "two\n")?;
        let c = write(&dir.join("c"), "one\n")?;
        let answers = (diff(&a, &b, "a", "b")?, diff(&a, &c, "a", "c")?);
        fs::remove_dir_all(&dir)?;
        assert_eq!(answers, (false, true));
        Ok(())
    }

    #[test]
    fn the_worktree_goes_when_the_value_goes() -> Result<()> {
        let dir = std::env::temp_dir().join(format!("gristmill-worktree-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let git = |args: &[&str]| shell::run(shell::git(&dir).args(args));
        git(&["init", "--quiet"])?;
        git(&["-c", "user.name=t", "-c", "user.email=t", "commit", "--quiet", "--allow-empty", "-m", "x"])?;
        let path = dir.join("elsewhere");
        {
            let worktree = Worktree::add(&dir, path.clone(), "HEAD")?;
            assert!(worktree.path.join(".git").exists());
        }
        let left = shell::stdout(shell::git(&dir).args(["worktree", "list"]))?;
        let gone = !path.exists();
        fs::remove_dir_all(&dir)?;
        assert!(gone);
        assert_eq!(left.lines().count(), 1);
        Ok(())
    }
}
