//! `gristmill rm`: removes downloaded models.

use super::pull::named;
use crate::failure::{Result, some_of};
use crate::model::warn;
use crate::size::size;
use clap::Args;
use gristmill_hub::Store;

const NOTES: &str = "\
Removes only files that `gristmill pull` downloaded, and follows no symbolic links.

Examples:
  gristmill rm glm-4.7-flash                        a model by its short name
  gristmill rm hf:unsloth/GLM-4.7-Flash-GGUF:Q4_0   one file, also an incomplete one
  gristmill rm hf:unsloth/GLM-4.7-Flash-GGUF        all files of a repository";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct RmArgs {
    /// Models: ORG/REPO[:QUANT], the URL of the download, or short names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub fn run(options: RmArgs) -> Result {
    let names = options.names.iter().map(|text| named(text)).collect::<Result<Vec<_>>>()?;
    let store = Store::user()?;
    for name in names {
        let removed = store.remove(&name)?;
        for gone in removed.gone {
            say!("{}: removed, {} freed", gone.name, size(gone.bytes));
        }
        if !removed.left.is_empty() {
            let names: Vec<String> = removed.left.iter().map(|p| p.display().to_string()).collect();
            warn(&[format!("kept, since `gristmill pull` did not download it: {}", some_of(&names))]);
        }
    }
    Ok(())
}
