//! `xtask experiments`: docs/experiments/README.md, the index of the
//! experiments by area and status.
//!
//! Each experiment is a file `NNN-slug.md` that begins with front matter, from which the index is
//! generated; tidy checks that it is current.

use crate::generated_page::GeneratedPage;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;

/// Folder of the experiments and of their index.
const FOLDER: &str = "docs/experiments/";
/// Index of all experiments, by area.
pub const INDEX: GeneratedPage = GeneratedPage {
    command: "experiments",
    path: "docs/experiments/README.md",
    folder: FOLDER,
    extension: ".md",
    format: index,
    source_hint: "CONTRIBUTING.md has the form of an experiment",
};

/// Areas in the order of the index, with their titles.
const AREAS: &[(&str, &str)] = &[
    ("attention", "Attention"),
    ("matmul", "Matrix products"),
    ("experts", "Mixture of experts"),
    ("cpu", "CPU: memory, threads, instruction sets"),
    ("cuda", "CUDA: launches, memory, occupancy"),
    ("wgpu", "Vulkan, Metal and Direct3D"),
    ("compiler", "Compiler: rewriting, cost model, compile time"),
    ("runtime", "Runtime: graphs, KV cache, sampling"),
    ("server", "Server: batching, scheduling, fairness"),
    ("testing", "Tests, conformance, continuous integration"),
];
/// Statuses of an experiment: in the product, tried and left out, or undecided.
const STATUSES: &[&str] = &["kept", "rejected", "open"];

const HEAD: &str = "\
# Experiments

One file per experiment: the idea, the machine, the prediction, the measurement. `cargo xtask experiments` generates this
index from their front matter; numbers never change, so that `docs/experiments/NNN` in a comment names one file.
CONTRIBUTING.md says how to add one.
";

#[derive(clap::Args)]
pub struct Options {
    /// Only report whether the index is current
    #[arg(long)]
    check: bool,
}

/// Returns true if the index is current; without --check, a stale index is rewritten first.
pub fn run(options: &Options) -> Result<bool> {
    INDEX.update(options.check)
}

/// The front matter of an experiment.
struct Experiment<'t> {
    file: &'t str,
    number: u32,
    title: &'t str,
    date: &'t str,
    status: &'t str,
    machine: &'t str,
    result: String,
}

/// Formats the index from files (name and content).
///
/// # Errors
/// If a file has incomplete front matter, an unknown area or status, a number that differs from its
/// name's, or the number of another file.
fn index(mut files: Vec<(&str, &str)>) -> Result<String> {
    files.sort_unstable();
    let mut areas: BTreeMap<usize, Vec<Experiment>> = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    for (name, text) in files {
        let fields = front_matter(text).with_context(|| format!("{FOLDER}{name}"))?;
        let (area, experiment) = parse(name, &fields).with_context(|| format!("{FOLDER}{name}"))?;
        if let Some(other) = numbers.insert(experiment.number, name) {
            bail!("{FOLDER}{name} has the number of {other}\nhint: take the next free number");
        }
        areas.entry(area).or_default().push(experiment);
    }
    let mut text = HEAD.to_owned();
    for (area, experiments) in areas {
        text += &format!(
            "\n## {}\n\n| | experiment | status | machine | result | date |\n|---|---|---|---|---|---|\n",
            AREAS[area].1
        );
        for Experiment {
            file,
            number,
            title,
            date,
            status,
            machine,
            result,
        } in experiments
        {
            text += &format!(
                "| <a id=\"{number:03}\"></a>{number} | [{title}]({file}) | {status} | {machine} | {result} | {date} |\n"
            );
        }
    }
    Ok(text)
}

/// Parses the fields between the two `---` lines at the start of a file.
fn front_matter(text: &str) -> Result<BTreeMap<&str, &str>> {
    let inside = text
        .strip_prefix("---\n")
        .and_then(|rest| rest.split_once("\n---\n"));
    let (inside, _) = inside
        .context("no front matter\nhint: begin the file with fields between two lines of ---")?;
    let mut fields = BTreeMap::new();
    for line in inside.lines() {
        let (name, value) = line
            .split_once(':')
            .with_context(|| format!("`{line}` is no field"))?;
        fields.insert(name.trim(), value.trim().trim_matches('"'));
    }
    Ok(fields)
}

fn parse<'t>(
    file: &'t str,
    fields: &BTreeMap<&'t str, &'t str>,
) -> Result<(usize, Experiment<'t>)> {
    let field = |name: &str| {
        let value = fields.get(name).copied().filter(|value| !value.is_empty());
        value.with_context(|| {
            format!(
                "no field `{name}`\nhint: number, title, date, area, status, machine, before, after"
            )
        })
    };
    let number: u32 = field("number")?.parse().context("`number` is none")?;
    ensure!(
        file.starts_with(&format!("{number:03}-")),
        "the file's name does not begin with {number:03}-"
    );
    let area = field("area")?;
    let known = || {
        AREAS
            .iter()
            .map(|area| area.0)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let area = AREAS.iter().position(|row| row.0 == area);
    let area = area.with_context(|| format!("an unknown area\nhint: one of {}", known()))?;
    let status = field("status")?;
    ensure!(
        STATUSES.contains(&status),
        "an unknown status `{status}`\nhint: one of {}",
        STATUSES.join(", ")
    );
    let result = format!("{} → {}", field("before")?, field("after")?);
    for text in [field("title")?, field("machine")?, &result] {
        ensure!(
            !text.contains('|'),
            "`{text}` has a `|`, which ends a cell of the index"
        );
    }
    let (title, date, machine) = (field("title")?, field("date")?, field("machine")?);
    Ok((
        area,
        Experiment {
            file,
            number,
            title,
            date,
            status,
            machine,
            result,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "---\nnumber: 7\ntitle: Prefetch rows: two\ndate: 2026-11-20\narea: cpu\nstatus: kept\nmachine: Zen 5\nbefore: 14 GB/s\nafter: 40 GB/s\n---\n\nText.\n";

    #[test]
    fn an_index_has_a_row_with_an_anchor() -> Result<()> {
        let text = index(vec![("007-prefetch-rows.md", GOOD)])?;
        assert!(
            text.contains("## CPU: memory, threads, instruction sets\n"),
            "{text}"
        );
        let row = "| <a id=\"007\"></a>7 | [Prefetch rows: two](007-prefetch-rows.md) | kept | Zen 5 | 14 GB/s → 40 GB/s | 2026-11-20 |";
        assert!(text.contains(row), "{text}");
        Ok(())
    }

    #[test]
    fn faulty_front_matter_is_named() {
        for (from, to, problem) in [
            ("---\nnumber", "number", "no front matter"),
            ("status: kept", "status: TODO", "an unknown status `TODO`"),
            ("area: cpu", "area: cellar", "an unknown area"),
            ("before: 14 GB/s\n", "", "no field `before`"),
            ("number: 7", "number: 8", "does not begin with 008-"),
            ("Zen 5", "Zen | 5", "has a `|`"),
        ] {
            let error = format!(
                "{:#}",
                index(vec![("007-a.md", &GOOD.replace(from, to))]).unwrap_err()
            );
            assert!(
                error.contains("docs/experiments/007-a.md") && error.contains(problem),
                "{error}"
            );
        }
        let error = index(vec![("007-a.md", GOOD), ("007-b.md", GOOD)])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("007-b.md has the number of 007-a.md"),
            "{error}"
        );
    }
}
