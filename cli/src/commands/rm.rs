//! `gristmill rm`.

use super::pull::named;
use crate::failure::{Result, some_of};
use crate::model::warn;
use crate::size::size;
use clap::Args;
use gristmill_hub::Store;

const NOTES: &str = "\
Only what `gristmill pull` has fetched is removed, never a file of your own, and nothing through a symbolic link.

Examples:
  gristmill rm glm-4.7-flash                           what a short name stands for
  gristmill rm hf:unsloth/GLM-4.7-Flash-GGUF:Q4_0      one file; also one that has come in part
  gristmill rm hf:unsloth/GLM-4.7-Flash-GGUF           all of a repository that is kept here";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// hf:ORG/REPO, hf:ORG/REPO:FILE, the address it was fetched from, or a short name
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub fn run(options: Options) -> Result {
    let names = options.names.iter().map(|text| named(text)).collect::<Result<Vec<_>>>()?;
    let store = Store::user()?;
    for name in names {
        let removed = store.remove(&name)?;
        for gone in removed.gone {
            say!("{}: removed, {} freed", gone.name, size(gone.bytes));
        }
        if !removed.left.is_empty() {
            let names: Vec<String> = removed.left.iter().map(|p| p.display().to_string()).collect();
            warn(&[format!("left, since it was not fetched: {}", some_of(&names))]);
        }
    }
    Ok(())
}
