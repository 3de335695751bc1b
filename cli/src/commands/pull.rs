//! `gristmill pull`: downloads models.

use crate::failure::{Failure, Result};
use crate::model;
use crate::size::size;
use clap::Args;
use gristmill_hub::{Name, Store};
use std::io::{self, Write};

const NOTES: &str = "\
Files go to $GRISTMILL_MODELS, or to gristmill/models in the user's data folder. Interrupted
downloads resume. A file from the hub is used once its SHA-256 matches; one from another server,
once its length and GGUF header are right. HF_ENDPOINT selects another hub, HF_TOKEN is the token
for private and gated repositories.

Examples:
  gristmill pull glm-4.7-flash                            a model by its short name
  gristmill pull youtu-llm-2b:F16                         another quantisation
  gristmill pull unsloth/GLM-4.7-Flash-GGUF:Q4_0          a file of the hub, by the end of its name
  gristmill pull https://models.example/some-Q4_0.gguf    a file of any server
  HF_ENDPOINT=https://hub.example gristmill pull hf:a/b   from another hub
  gristmill chat glm-4.7-flash                            every MODEL argument takes the same names";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct PullArgs {
    /// Models: ORG/REPO[:QUANT], the URL of a .gguf file, or short names (`gristmill list`)
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub fn run(options: PullArgs) -> Result {
    let names = options.names.iter().map(|text| named(text)).collect::<Result<Vec<_>>>()?;
    let store = Store::user()?;
    let mut out = io::stdout().lock();
    for name in names {
        let pulled = model::pull(&store, &name)?;
        let came = if pulled.fetched == 0 { "already downloaded".into() } else { format!("downloaded {}", size(pulled.fetched)) };
        say!("{}: {came}", pulled.name);
        // Programs read the path from standard output.
        writeln!(out, "{}", pulled.file.display())?;
    }
    Ok(())
}

/// Parses the name of a model that can be downloaded.
pub fn named(text: &str) -> Result<Name> {
    if text == model::DEMO_NAME {
        let message = format!("{text} is built in: there is nothing to download or remove");
        return Err(Failure::usage(message, format!("`gristmill chat {text}` runs it")));
    }
    Name::parse(text)?.ok_or_else(|| {
        Failure::usage(format_args!("{text} is not the name of a model"), model::no_name_hint(text))
    })
}
