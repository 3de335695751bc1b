//! `gristmill list`.

use crate::failure::{Result, printable};
use crate::model;
use crate::size::size;
use clap::Args;
use gristmill_hub::{SHORT, Store};
use serde_json::json;
use std::io::{self, Write};

const NOTES: &str = "\
Examples:
  gristmill list                  what is kept, and the short names
  gristmill list --json           one object a line: name, bytes, whole, files";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(options: Options) -> Result {
    let store = Store::user()?;
    let kept = store.list()?;
    let mut out = io::stdout().lock();
    if options.json {
        for model in &kept {
            let line = json!({
                "name": model.name.to_string(), "bytes": model.bytes, "whole": model.whole, "files": model.files,
            });
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    writeln!(out, "KEPT in {}", store.root().display())?;
    if kept.is_empty() {
        writeln!(out, "  nothing yet; `gristmill pull NAME` fetches a model")?;
    }
    for model in &kept {
        let state = if model.whole { "" } else { "  in part; `gristmill pull` fetches the rest" };
        writeln!(out, "  {:>9}  {}{state}", size(model.bytes), printable(&model.name.to_string()))?;
    }
    let total: u64 = kept.iter().map(|k| k.bytes).sum();
    if kept.len() > 1 {
        writeln!(out, "  {:>9}  together", size(total))?;
    }
    writeln!(out, "\nSHORT NAMES")?;
    writeln!(out, "  {:16}  inside the program", model::DEMO_NAME)?;
    for row in SHORT {
        writeln!(out, "  {:16}  {}", row.name, row.stands_for)?;
    }
    Ok(())
}
