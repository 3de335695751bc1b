//! `gristmill list`: downloaded models and short names.

use crate::failure::{Failure, Result, printable, some_of};
use crate::model::{self, warn};
use crate::progress::Fetching;
use crate::size::size;
use clap::Args;
use gristmill_hub::{Contents, StoredModel, SHORT_NAMES, Store, Verdict};
use serde_json::json;
use std::io::{self, Write};
use std::path::Path;

const NOTES: &str = "\
Examples:
  gristmill list            downloaded models and short names
  gristmill list --verify   check the SHA-256 of every file
  gristmill list --json     one object per line, for programs";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct ListArgs {
    /// Print one JSON object per line instead of a table
    #[arg(long)]
    json: bool,
    /// Check the SHA-256 of every file against that of its download
    #[arg(long)]
    verify: bool,
}

pub fn run(options: ListArgs) -> Result {
    let store = Store::user()?;
    let contents = store.list()?;
    let verdicts = match options.verify {
        true => verify(&store, &contents.kept)?,
        false => vec![None; contents.kept.len()],
    };
    let mut out = io::stdout().lock();
    if options.json {
        for (model, verdict) in contents.kept.iter().zip(&verdicts) {
            let mut line = json!({
                "name": model.name.to_string(), "bytes": model.bytes, "whole": model.whole, "fetched": model.fetched,
                "files": model.files,
            });
            if let Some(verdict) = verdict {
                line["verdict"] = json!(word(*verdict));
            }
            writeln!(out, "{line}")?;
        }
    } else {
        table(&store, &contents, &verdicts, &mut out)?;
    }
    if !contents.passed_over.is_empty() {
        let names: Vec<String> = contents.passed_over.iter().map(|p| p.display().to_string()).collect();
        warn(&[format!("skipped links and names that are not plain text: {}", some_of(&names))]);
    }
    let changed = verdicts.iter().filter(|v| **v == Some(Verdict::Changed)).count();
    match changed {
        0 => Ok(()),
        n => Err(Failure::new(
            format_args!("{n} of {} models have changed since they were downloaded", verdicts.len()),
            "`gristmill pull NAME` downloads them again; keep files of your own in another folder",
        )),
    }
}

/// Verifies every complete model.
fn verify(store: &Store, kept: &[StoredModel]) -> Result<Vec<Option<Verdict>>> {
    let reading = Fetching::new();
    let verdict = |model: &StoredModel| {
        let mut show = |file: &Path, done, total| reading.checked(&file.display().to_string(), done, total);
        model.whole.then(|| store.verify(model, &mut show)).transpose()
    };
    Ok(kept.iter().map(verdict).collect::<std::result::Result<_, _>>()?)
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same => "same",
        Verdict::Changed => "changed",
        Verdict::Unknown => "unknown",
    }
}

fn table(store: &Store, contents: &Contents, verdicts: &[Option<Verdict>], out: &mut dyn Write) -> Result {
    let kept = &contents.kept;
    writeln!(out, "MODELS in {}", printable(&store.root().display().to_string()))?;
    if kept.is_empty() {
        writeln!(out, "  none yet; `gristmill pull NAME` downloads one")?;
    }
    for (model, verdict) in kept.iter().zip(verdicts) {
        let state = match (model.fetched, model.whole, verdict) {
            (false, ..) => "  not downloaded here; `gristmill rm` keeps it",
            (true, false, _) => "  incomplete; `gristmill pull` resumes the download",
            (true, true, None | Some(Verdict::Unknown)) => "",
            (true, true, Some(Verdict::Same)) => "  verified",
            (true, true, Some(Verdict::Changed)) => "  CHANGED since the download; `gristmill pull` downloads it again",
        };
        writeln!(out, "  {:>9}  {}{state}", size(model.bytes), printable(&model.name.to_string()))?;
    }
    let total: u64 = kept.iter().map(|k| k.bytes).sum();
    if kept.len() > 1 {
        writeln!(out, "  {:>9}  total", size(total))?;
    }
    writeln!(out, "\nSHORT NAMES")?;
    writeln!(out, "  {:16}  built in", model::DEMO_NAME)?;
    for row in SHORT_NAMES {
        writeln!(out, "  {:16}  {}", row.name, row.stands_for)?;
    }
    Ok(())
}
