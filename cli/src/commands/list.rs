//! `gristmill list`.

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
  gristmill list                  what is kept, and the short names
  gristmill list --verify         reads all of it again: is it still what was fetched?
  gristmill list --json           one object a line: name, bytes, whole, fetched, files; with --verify the verdict";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
    /// Read every file again and compare its SHA-256 with the one it was fetched with
    #[arg(long)]
    verify: bool,
}

pub fn run(options: Options) -> Result {
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
        warn(&[format!("passed over, since they are links or have no plain names: {}", some_of(&names))]);
    }
    let changed = verdicts.iter().filter(|v| **v == Some(Verdict::Changed)).count();
    match changed {
        0 => Ok(()),
        n => Err(Failure::new(
            format_args!("{n} of {} models are not what was fetched", verdicts.len()),
            "`gristmill pull NAME` fetches them again; what you changed yourself belongs elsewhere",
        )),
    }
}

/// Reads everything that is whole again.
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
    writeln!(out, "KEPT in {}", printable(&store.root().display().to_string()))?;
    if kept.is_empty() {
        writeln!(out, "  nothing yet; `gristmill pull NAME` fetches a model")?;
    }
    for (model, verdict) in kept.iter().zip(verdicts) {
        let state = match (model.fetched, model.whole, verdict) {
            (false, ..) => "  not fetched, so `gristmill rm` leaves it",
            (true, false, _) => "  in part; `gristmill pull` fetches the rest",
            (true, true, None | Some(Verdict::Unknown)) => "",
            (true, true, Some(Verdict::Same)) => "  is what was fetched",
            (true, true, Some(Verdict::Changed)) => "  CHANGED since it was fetched; `gristmill pull` fetches it again",
        };
        writeln!(out, "  {:>9}  {}{state}", size(model.bytes), printable(&model.name.to_string()))?;
    }
    let total: u64 = kept.iter().map(|k| k.bytes).sum();
    if kept.len() > 1 {
        writeln!(out, "  {:>9}  together", size(total))?;
    }
    writeln!(out, "\nSHORT NAMES")?;
    writeln!(out, "  {:16}  inside the program", model::DEMO_NAME)?;
    for row in SHORT_NAMES {
        writeln!(out, "  {:16}  {}", row.name, row.stands_for)?;
    }
    Ok(())
}
