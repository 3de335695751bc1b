//! `xtask benchmarks`: docs/benchmarks.md, made of the JSON files under docs/benchmarks.
//!
//! The page is committed beside its files; tidy holds that it is what they give.

pub mod report;

use crate::bench_serve::report as of_servers;
use crate::shell;
use anyhow::{Context, Result, anyhow, bail};
use report::{Report, markdown};
use std::fs;

/// The page.
pub const PAGE: &str = "docs/benchmarks.md";
/// Where its files are: what `xtask bench-peer -o` and `xtask bench-serve -o` wrote.
pub const FOLDER: &str = "docs/benchmarks/";

const HEAD: &str = "\
# Benchmarks

Made by `cargo xtask benchmarks` from the files under docs/benchmarks, which hold every sample; `cargo xtask bench-peer -o
docs/benchmarks/NAME.json` writes one. Do not edit this page.

Both programs read the same file, with the same number of threads and an f16 cache, and took turns test by test. `pp` is a
prompt, `tg` a generation, each with so many tokens in the cache before (depth); `start` is the wall clock of a process that
loads the model and computes one token. Cells are minimum / **median** / maximum. The ratio is how many times as fast
gristmill is, by medians, as the better of the peer's two ways of computing attention (-fa). Bandwidth is the share of what
the machine's memory delivers when it is only read that the weights and the cache make at the median speed.

Sections that begin with `serve` are of servers under load, the same file and the same requests in turns: `cargo xtask bench-serve -o
docs/benchmarks/serve-NAME.json`. Their times are of p50 / p90 / p99: to the first text, of a token behind the first on average of each request, from
one piece of a stream to the next, and of a request in all.

The others are runs on processors. Those on a GPU (commands, machine, JSON), and where a token's time goes there kernel by kernel, are in
[docs/cuda](cuda/README.md).
";
/// What names of files of `xtask bench-serve` begin with.
const OF_SERVERS: &str = "serve-";

#[derive(clap::Args)]
pub struct Options {
    /// Only say whether the page is what the files give
    #[arg(long)]
    check: bool,
}

/// True if the page is what the files give, which without --check it is afterwards.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    let mut files = vec![];
    for entry in fs::read_dir(root.join(FOLDER)).map_err(|e| {
        anyhow!("cannot list {FOLDER}: {e}\nhint: `cargo xtask bench-peer -o {FOLDER}NAME.json …` fills it")
    })? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".json") {
            let text = fs::read_to_string(root.join(FOLDER).join(&name))?;
            files.push((name, text));
        }
    }
    let text = page(files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect())?;
    let path = root.join(PAGE);
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        eprintln!("benchmarks: {PAGE} is what {} files give", files.len());
        return Ok(true);
    }
    if options.check {
        eprintln!("benchmarks: {PAGE} is not what the files give\nhint: `cargo xtask benchmarks` writes it");
        return Ok(false);
    }
    fs::write(&path, text)?;
    eprintln!("benchmarks: {PAGE} written from {} files", files.len());
    Ok(true)
}

/// The page of these files (name and content), in order of their names, the newest name last.
pub fn page(mut files: Vec<(&str, &str)>) -> Result<String> {
    files.sort_unstable();
    let mut text = HEAD.to_owned();
    for (name, content) in files {
        let title = name.trim_end_matches(".json");
        if name.starts_with(OF_SERVERS) {
            let report = serde_json::from_str(content).with_context(|| {
                format!("{FOLDER}{name} is not a report of servers\nhint: `cargo xtask bench-serve -o` writes one")
            })?;
            text += &format!("\n## {title}\n\n{}", of_servers::markdown(&report));
            continue;
        }
        let report: Report = serde_json::from_str(content)
            .with_context(|| format!("{FOLDER}{name} is not a report\nhint: `cargo xtask bench-peer -o` writes one"))?;
        if report.rows.iter().any(|row| row.gristmill.samples.is_empty() || row.best().is_none()) {
            bail!("{FOLDER}{name} has a row without samples\nhint: measure again with `cargo xtask bench-peer`");
        }
        text += &format!("\n## {title}\n\n{}", markdown(&report));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_order_of_names() -> Result<()> {
        let text = serde_json::to_string(&report::tests::example())?;
        let page = page(vec![("b.json", &text), ("a.json", &text)])?;
        let a = page.find("\n## a\n").context("a")?;
        assert!(page.find("\n## b\n").context("b")? > a);
        assert!(page.starts_with("# Benchmarks\n"));
        Ok(())
    }

    #[test]
    fn servers_have_sections() -> Result<()> {
        let text = serde_json::to_string(&of_servers::tests::example())?;
        let page = page(vec![("serve-a.json", &text)])?;
        assert!(page.contains("\n## serve-a\n\n- Machine: ") && page.contains("| ours | 2 clients |"), "{page}");
        let error = super::page(vec![("serve-b.json", "{}")]).unwrap_err().to_string();
        assert!(error.contains("serve-b.json is not a report of servers"), "{error}");
        Ok(())
    }

    #[test]
    fn what_is_no_report_is_named() -> Result<()> {
        let error = page(vec![("x.json", "{}")]).unwrap_err().to_string();
        assert!(error.contains("docs/benchmarks/x.json") && error.contains("hint:"), "{error}");
        let mut report = report::tests::example();
        report.rows[0].gristmill.samples.clear();
        let error = page(vec![("y.json", &serde_json::to_string(&report)?)]).unwrap_err().to_string();
        assert!(error.contains("y.json has a row without samples"), "{error}");
        Ok(())
    }
}
