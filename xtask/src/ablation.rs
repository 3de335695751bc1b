//! `xtask ablation`: docs/ablation.md, made of the JSON files under docs/ablation, which it also measures.
//!
//! The page is committed beside its files; tidy holds that it is what they give.

pub mod report;

use crate::machine;
use crate::shell;
use anyhow::{Context, Result, anyhow, bail};
use report::{Report, Row, markdown, paragraphs};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The page.
pub const PAGE: &str = "docs/ablation.md";
/// Where its files are.
pub const FOLDER: &str = "docs/ablation/";

const HEAD: &str = "\
# What each optimisation is worth

Made by `cargo xtask ablation` from the files under docs/ablation, each of which `cargo xtask ablation -o docs/ablation/NAME.json -- MODEL …` writes. Do not edit this page.

`gristmill bench MODEL --ablate` compiles a model once for each optimisation with it off, and measures that in turns with everything on. A cell is the speed without it as a part of the
speed with it: 50 % says that it doubles the speed, more than 100 % that this run was faster without. A run of few repetitions on a machine that others use too says nothing of a few per cent. Cells are empty
where a device does not have the optimisation, or the program did not yet when it was measured.

";

/// Above the paragraphs.
const ABOUT_IDEAS: &str = "
## What each idea was for

Of each idea what is claimed, how much faster the runs above are with it, and why; from `docs/ablation/ideas.json`. A gain is of the speed without it.
";

const NOTES: &str = "\
Without -o the page is made. With it gristmill is run, with the arguments behind --, and the file written; `-p 0` leaves prompts out.

Example:
  cargo xtask ablation -o docs/ablation/xeon-demo.json -- demo -p 64 -n 16 -r 3";

#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// Only say whether the page is what the files give
    #[arg(long, conflicts_with = "output")]
    check: bool,
    /// Measure, and write that file
    #[arg(short, long, value_name = "FILE.json", requires = "bench")]
    output: Option<PathBuf>,
    /// The program to measure [default: this tree's, built now]
    #[arg(long, value_name = "PATH", requires = "output")]
    gristmill: Option<PathBuf>,
    /// The revision that --gristmill was built from, for the report [default: this tree's]
    #[arg(long, value_name = "REV", requires = "output")]
    commit: Option<String>,
    /// What the device is called on the page [default: what the program calls it]
    #[arg(long, value_name = "NAME", requires = "output")]
    device: Option<String>,
    /// Arguments of `gristmill bench`: a model, then -p, -n, -r, --device and others
    #[arg(last = true, requires = "output")]
    bench: Vec<String>,
}

/// True if the page is what the files give, which without --check it is afterwards.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    if let Some(path) = &options.output {
        measure(options, &root, path)?;
    }
    let text = page(files(&root)?.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect())?;
    let path = root.join(PAGE);
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        eprintln!("ablation: {PAGE} is what the files give");
        return Ok(true);
    }
    if options.check {
        eprintln!("ablation: {PAGE} is not what the files give\nhint: `cargo xtask ablation` writes it");
        return Ok(false);
    }
    fs::write(&path, text)?;
    eprintln!("ablation: {PAGE} written");
    Ok(true)
}

/// Names and contents.
fn files(root: &Path) -> Result<Vec<(String, String)>> {
    let hint = || anyhow!("cannot list {FOLDER}\nhint: `cargo xtask ablation -o {FOLDER}NAME.json -- MODEL` fills it");
    let mut files = vec![];
    for entry in fs::read_dir(root.join(FOLDER)).with_context(hint)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".json") {
            let text = fs::read_to_string(root.join(FOLDER).join(&name))?;
            files.push((name, text));
        }
    }
    Ok(files)
}

/// Runs the program and writes what it says.
fn measure(options: &Options, root: &Path, path: &Path) -> Result<()> {
    let program = match &options.gristmill {
        Some(path) => shell::program(path, "leave --gristmill out to build and measure this tree's")?,
        None => shell::gristmill(root)?,
    };
    let asked = options.bench.iter().position(|a| a == "--threads").and_then(|at| options.bench.get(at + 1));
    let threads = match asked {
        Some(n) => n.parse().with_context(|| format!("--threads {n}"))?,
        None => machine::cores()?,
    };
    let mut report = Report {
        date: machine::today(),
        command: format!("gristmill bench {} --ablate", options.bench.join(" ")),
        machine: Some(machine::describe(threads)?),
        commit: options.commit.clone().map_or_else(|| shell::commit(root), Ok)?,
        device: String::new(),
        rows: vec![],
    };
    // A file that cannot be written is better known now than after an hour.
    shell::save(path, &report)?;
    let lines = shell::stdout(Command::new(program).arg("bench").args(&options.bench).args(["--ablate", "--json"]))?;
    for line in lines.lines() {
        let value: serde_json::Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        report.device = value["device"].as_str().unwrap_or_default().to_owned();
        report.rows.push(serde_json::from_value::<Row>(value).with_context(|| line.to_owned())?);
    }
    report.device = options.device.clone().unwrap_or(report.device);
    shell::save(path, &report)
}

/// The file beside the reports that says what each idea is for.
const IDEAS: &str = "ideas.json";

/// The page of these files (name and content): reports in order of their names, and a paragraph for each idea, if they are told.
pub fn page(mut files: Vec<(&str, &str)>) -> Result<String> {
    files.sort_unstable();
    let (mut reports, mut ideas) = (vec![], vec![]);
    for (name, content) in files {
        if name == IDEAS {
            ideas = serde_json::from_str(content).with_context(|| format!("{FOLDER}{IDEAS} has no list of ideas"))?;
            continue;
        }
        let report: Report = serde_json::from_str(content)
            .with_context(|| format!("{FOLDER}{name} is not a report\nhint: `cargo xtask ablation -o` writes one"))?;
        if report.rows.is_empty() || report.rows.iter().any(|row| row.model != report.model()) {
            bail!("{FOLDER}{name} is not of one model\nhint: measure one with `cargo xtask ablation -o`");
        }
        reports.push((name.trim_end_matches(".json"), report));
    }
    let told = if ideas.is_empty() { String::new() } else { ABOUT_IDEAS.to_owned() + &paragraphs(&ideas, &reports) };
    Ok(HEAD.to_owned() + &markdown(&reports) + &told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_order_of_names() -> Result<()> {
        let of = |device: &str| serde_json::to_string(&report::tests::example(device, &["x"]));
        let page = page(vec![("b.json", &of("gpu")?), ("a.json", &of("cpu")?)])?;
        let a = page.find("| a | cpu |").context("a")?;
        assert!(page.find("| b | gpu |").context("b")? > a);
        assert!(page.starts_with("# What each optimisation is worth\n"));
        Ok(())
    }

    #[test]
    fn ideas_are_told_behind_the_tables() -> Result<()> {
        let report = serde_json::to_string(&report::tests::example("cpu", &["x"]))?;
        let ideas = r#"[{"idea": "An idea", "flags": ["x"], "claimed": "Much.", "why": "So."}]"#;
        let page = page(vec![("ideas.json", ideas), ("a.json", &report)])?;
        let (tables, told) = page.split_once("## What each idea was for").context("ideas")?;
        assert!(tables.contains("- a: `gristmill") && told.contains("**An idea.** Claimed: Much."), "{page}");
        let error = super::page(vec![("ideas.json", "{}")]).unwrap_err().to_string();
        assert!(error.contains("docs/ablation/ideas.json"), "{error}");
        Ok(())
    }

    #[test]
    fn what_is_no_report_is_named() -> Result<()> {
        let error = page(vec![("x.json", "{}")]).unwrap_err().to_string();
        assert!(error.contains("docs/ablation/x.json") && error.contains("hint:"), "{error}");
        let empty = serde_json::to_string(&report::tests::example("cpu", &[]))?;
        let error = page(vec![("y.json", &empty)]).unwrap_err().to_string();
        assert!(error.contains("y.json is not of one model"), "{error}");
        Ok(())
    }
}
