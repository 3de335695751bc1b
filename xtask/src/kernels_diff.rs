//! `xtask kernels-diff REV`: diffs the generated kernels of this tree against another revision.
//!
//! Both revisions are built in one target directory, `target/kernels-diff`, so that their common
//! dependencies are compiled once. The other revision is checked out in a git worktree below it,
//! which is removed even on failure. `gristmill kernels` compiles every step kind of a model, so
//! each combination of model, target and variant yields one text.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// One model per kind of layer. The most measured models have the simplest quantisation and a mix
/// of formats with six-bit scales.
const MODELS: &[Model] = &[
    // Dense, multi-head latent attention (MLA).
    Model {
        name: "synth:youtu-llm-2b:q4_0",
        variants: ALL,
    },
    Model {
        name: "synth:youtu-llm-2b:q4_k_m",
        variants: ALL,
    },
    // Mixture of experts; MLA without and with a query rank.
    Model {
        name: "synth:deepseek-v2-lite:q4_0",
        variants: ALL,
    },
    Model {
        name: "synth:deepseek-v2-lite:q4_k_m",
        variants: ALL,
    },
    Model {
        name: "synth:glm-4.7-flash:q4_0",
        variants: ALL,
    },
    Model {
        name: "synth:glm-4.7-flash:q4_k_m",
        variants: ALL,
    },
    // Dense, grouped-query attention.
    Model {
        name: "synth:llama-3.1-8b:q4_0",
        variants: ALL,
    },
    Model {
        name: "synth:llama-3.1-8b:q4_k_m",
        variants: ALL,
    },
    // Mixture of experts with biases, attention sinks and sliding windows.
    Model {
        name: "synth:gpt-oss-20b:mxfp4_moe",
        variants: &["", "batch-8"],
    },
    // Many small experts, grouped-query attention.
    Model {
        name: "synth:qwen3-30b-a3b:q4_k_m",
        variants: &["", "batch-8"],
    },
    // Recurrent state: no batched decode.
    Model {
        name: "synth:qwen3.5-35b-a3b:q4_k_m",
        variants: &[""],
    },
];

/// Targets that kernels are generated for. Nothing runs, so none needs its hardware.
const TARGETS: &[Target] = &[
    Target {
        name: "gpu",
        arguments: &["--device", "null:gpu"],
        heading: "# gpu-h200:",
    },
    Target {
        name: "m3-max",
        arguments: &["--device", "null:m3-max"],
        heading: "# gpu-adapter Apple M3 Max:",
    },
    Target {
        name: "amx",
        arguments: &["--device", "null", "--isa", "amx"],
        heading: "# cpu-amx:",
    },
    Target {
        name: "avx512vnni",
        arguments: &["--device", "null", "--isa", "avx512vnni"],
        heading: "# cpu-avx512vnni:",
    },
    Target {
        name: "avx2",
        arguments: &["--device", "null", "--isa", "avx2"],
        heading: "# cpu-avx2:",
    },
    Target {
        name: "plain",
        arguments: &["--device", "null", "--isa", "plain"],
        heading: "# cpu-plain:",
    },
];

/// Options that change a model's kernels.
const VARIANTS: &[Variant] = &[
    Variant {
        name: "",
        arguments: &[],
    },
    Variant {
        name: "exact",
        arguments: &["--exact"],
    },
    Variant {
        name: "kv-q8_0",
        arguments: &["--kv", "q8_0"],
    },
    Variant {
        name: "batch-8",
        arguments: &["--batch", "8"],
    },
];

/// All variants, for models that are compared completely.
const ALL: &[&str] = &["", "exact", "kv-q8_0", "batch-8"];
/// Single-sequence variants, for models that have no row in [`MODELS`].
const OF_ONE_SEQUENCE: &[&str] = &["", "exact", "kv-q8_0"];

/// A row of [`MODELS`].
struct Model {
    name: &'static str,
    /// Names of its variants, from [`VARIANTS`].
    variants: &'static [&'static str],
}

/// A row of [`TARGETS`].
struct Target {
    name: &'static str,
    /// Arguments for `gristmill kernels`.
    arguments: &'static [&'static str],
    /// Expected beginning of the output; another beginning means another target.
    heading: &'static str,
}

/// A row of [`VARIANTS`].
struct Variant {
    name: &'static str,
    arguments: &'static [&'static str],
}

#[derive(clap::Args)]
pub struct Options {
    /// Revision to compare with
    rev: String,
    /// Models: files or synth:PRESET:QUANT
    #[arg(default_values_t = MODELS.iter().map(|m| m.name.to_string()))]
    models: Vec<String>,
    /// Targets to compare [default: all]
    #[arg(long = "target", value_parser = clap::builder::PossibleValuesParser::new(TARGETS.iter().map(|t| t.name)))]
    targets: Vec<String>,
    /// Arguments for both `gristmill kernels`, in place of the
    /// variants --exact, --kv q8_0 and --batch 8
    #[arg(last = true)]
    extra: Vec<String>,
}

/// Returns true if no kernel differs.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    let target = root.join("target").join("kernels-diff");
    fs::create_dir_all(&target)?;
    let rev = format!("{}^{{commit}}", options.rev);
    let rev = shell::stdout(shell::git(&root).args([
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        &rev,
    ]))
    .with_context(|| format!("{} is not a revision", options.rev))?;
    let rev = rev.trim_end();

    // An interrupt also reaches the child process; its failure then drops the `Worktree`.
    ctrlc::set_handler(|| {})?;
    let there = {
        let worktree = Worktree::add(&root, target.join("worktree"), rev)?;
        build(&worktree.path, &target, "there")?
    };
    let here = build(&root, &target, "here")?;

    let text = target.join("text");
    let _ = fs::remove_dir_all(&text);
    let mut same = true;
    for case in cases(options) {
        let name = case.file_name();
        let start = Instant::now();
        let (new, old) = std::thread::scope(|scope| {
            let old = scope.spawn(|| kernels(&there, &case));
            (
                kernels(&here, &case),
                old.join().expect("a thread that panics"),
            )
        });
        let new = new.with_context(|| format!("this tree cannot compile {name}"))?;
        if !new.starts_with(case.target.heading) {
            bail!(
                "{name} does not begin with `{}`: it was made for another target",
                case.target.heading
            );
        }
        // A revision that lacks the model or the option has
        // no kernels for it, so everything is new.
        let old = old.unwrap_or_else(|error| {
            eprintln!(
                "kernels-diff: {name} fails at {}, taken as empty: {error:#}",
                options.rev
            );
            String::new()
        });
        let old = write(&text.join("there").join(&name), &old)?;
        let new = write(&text.join("here").join(&name), &new)?;
        let equal = diff(
            &old,
            &new,
            &format!("{name} ({})", options.rev),
            &format!("{name} (this tree)"),
        )?;
        same &= equal;
        let (found, seconds) = (
            if equal { "the same" } else { "differs" },
            start.elapsed().as_secs_f64(),
        );
        eprintln!("kernels-diff: {name}: {found}, {seconds:.0} s");
    }
    eprintln!(
        "kernels-diff: {}",
        if same {
            "no kernel differs"
        } else {
            "kernels differ"
        }
    );
    Ok(same)
}

/// One comparison: a model, a target and a variant.
struct Case<'o> {
    model: &'o str,
    target: &'static Target,
    variant: &'static str,
    arguments: Vec<&'o str>,
}

/// Lists the cases that the options select.
fn cases(options: &Options) -> Vec<Case<'_>> {
    let wanted: BTreeSet<&str> = options.targets.iter().map(String::as_str).collect();
    let targets = TARGETS
        .iter()
        .filter(|t| wanted.is_empty() || wanted.contains(t.name));
    let mut out = Vec::new();
    for target in targets {
        for model in &options.models {
            for (variant, extra) in variants(model, &options.extra) {
                let arguments = [target.arguments, &extra].concat();
                out.push(Case {
                    model,
                    target,
                    variant,
                    arguments,
                });
            }
        }
    }
    out
}

/// Returns the variants of a model with their arguments; `extra` replaces the ones of its row.
fn variants<'o>(model: &str, extra: &'o [String]) -> Vec<(&'static str, Vec<&'o str>)> {
    if !extra.is_empty() {
        return vec![("", extra.iter().map(String::as_str).collect())];
    }
    let row = MODELS.iter().find(|m| m.name == model);
    let names = row.map_or(OF_ONE_SEQUENCE, |m| m.variants);
    VARIANTS
        .iter()
        .filter(|v| names.contains(&v.name))
        .map(|v| (v.name, v.arguments.to_vec()))
        .collect()
}

/// A git worktree that is removed when this value is dropped.
struct Worktree {
    root: PathBuf,
    path: PathBuf,
}

impl Worktree {
    fn add(root: &Path, path: PathBuf, rev: &str) -> Result<Worktree> {
        let worktree = Worktree {
            root: root.to_owned(),
            path,
        };
        // A killed run may have left a worktree.
        worktree.remove();
        shell::run(
            shell::git(root)
                .args(["worktree", "add", "--quiet", "--detach"])
                .arg(&worktree.path)
                .arg(rev),
        )?;
        Ok(worktree)
    }

    fn remove(&self) {
        // Errors are ignored, since there may be no such worktree.
        let _ = shell::git(&self.root)
            .args(["worktree", "remove", "--force"])
            .arg(&self.path)
            .output();
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
            .args([
                "build",
                "--quiet",
                "--release",
                "--package",
                "gristmill",
                "--bin",
                "gristmill",
            ])
            .env("CARGO_TARGET_DIR", target),
    )?;
    let exe = std::env::consts::EXE_SUFFIX;
    let copy = target.join(format!("gristmill-{name}{exe}"));
    fs::copy(
        target.join("release").join(format!("gristmill{exe}")),
        &copy,
    )?;
    Ok(copy)
}

/// Returns the source of every kernel of a case.
fn kernels(gristmill: &Path, case: &Case) -> Result<String> {
    let mut command = Command::new(gristmill);
    command
        .args(["kernels", case.model, "--stage", "source"])
        .args(&case.arguments);
    let text = shell::stdout(&mut command)?;
    if text.trim().is_empty() {
        bail!("{command:?} printed nothing");
    }
    Ok(text)
}

impl Case<'_> {
    fn file_name(&self) -> String {
        let plain = |c: char| {
            if c.is_alphanumeric() || ".-_".contains(c) {
                c
            } else {
                '-'
            }
        };
        let parts = [self.model, self.target.name, self.variant]
            .into_iter()
            .filter(|part| !part.is_empty());
        let name = parts
            .map(|part| part.chars().map(plain).collect::<String>())
            .collect::<Vec<_>>()
            .join(".");
        format!("{name}.txt")
    }
}

fn write(path: &Path, text: &str) -> Result<PathBuf> {
    fs::create_dir_all(path.parent().context("a file has a folder")?)?;
    fs::write(path, text)?;
    Ok(path.to_owned())
}

/// Prints the unified diff of two files; returns true if they are equal.
fn diff(old: &Path, new: &Path, old_label: &str, new_label: &str) -> Result<bool> {
    let mut command = Command::new("diff");
    command
        .args(["-u", "--label", old_label, "--label", new_label])
        .arg(old)
        .arg(new);
    let status = command
        .status()
        .context("cannot start `diff`; hint: install diffutils")?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => bail!("{command:?}: {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(targets: &[&str], extra: &[&str]) -> Options {
        let all = |texts: &[&str]| texts.iter().map(|t| t.to_string()).collect();
        Options {
            rev: "HEAD".into(),
            models: MODELS.iter().map(|m| m.name.to_string()).collect(),
            targets: all(targets),
            extra: all(extra),
        }
    }

    #[test]
    fn every_model_target_and_variant_has_a_separate_text() {
        let all = options(&[], &[]);
        let names: BTreeSet<String> = cases(&all).iter().map(Case::file_name).collect();
        let of_a_target: usize = MODELS.iter().map(|m| m.variants.len()).sum();
        assert_eq!(names.len(), TARGETS.len() * of_a_target);
        assert!(
            names.contains("synth-glm-4.7-flash-q4_0.gpu.txt"),
            "{names:?}"
        );
        assert!(
            names.contains("synth-youtu-llm-2b-q4_k_m.avx2.kv-q8_0.txt"),
            "{names:?}"
        );
        assert!(
            names.contains("synth-gpt-oss-20b-mxfp4_moe.amx.batch-8.txt"),
            "{names:?}"
        );
        assert!(
            names.contains("synth-qwen3.5-35b-a3b-q4_k_m.m3-max.txt"),
            "{names:?}"
        );
    }

    #[test]
    fn rows_name_variants_that_there_are() {
        for model in MODELS {
            assert!(
                model
                    .variants
                    .iter()
                    .all(|name| VARIANTS.iter().any(|v| v.name == *name)),
                "{}",
                model.name
            );
        }
        let others = variants("a.gguf", &[]);
        assert_eq!(
            others.iter().map(|v| v.0).collect::<Vec<_>>(),
            OF_ONE_SEQUENCE
        );
    }

    #[test]
    fn a_gpu_is_no_processor() {
        let gpu = options(&["gpu"], &["--function", "moe"]);
        let cases = cases(&gpu);
        assert_eq!(cases.len(), MODELS.len());
        for case in &cases {
            assert_eq!(
                case.arguments,
                ["--device", "null:gpu", "--function", "moe"]
            );
        }
        let headings: BTreeSet<&str> = TARGETS.iter().map(|t| t.heading).collect();
        assert_eq!(headings.len(), TARGETS.len(), "a text tells its target");
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
        git(&[
            "-c",
            "user.name=t",
            "-c",
            "user.email=t",
            "commit",
            "--quiet",
            "--allow-empty",
            "-m",
            "x",
        ])?;
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
