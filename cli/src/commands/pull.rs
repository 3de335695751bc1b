//! `gristmill pull`.

use crate::failure::{Failure, Result};
use crate::model;
use crate::size::size;
use clap::Args;
use gristmill_hub::{Name, Store};
use std::io::{self, Write};

const NOTES: &str = "\
Files are kept in the folder that GRISTMILL_MODELS names, else in gristmill/models of the user's data folder. A fetch that
breaks off goes on where it stopped, now or when it is asked for again, and a file counts only once its SHA-256 is the
hub's. HF_ENDPOINT names another hub, HF_TOKEN a token for private and gated repositories. A file elsewhere has no known
SHA-256: it counts once it is as long as announced and its head is that of a GGUF file.

Examples:
  gristmill pull glm-4.7-flash                                a model by its short name
  gristmill pull youtu-llm-2b:F16                             the same in another quantisation
  gristmill pull hf:unsloth/GLM-4.7-Flash-GGUF:Q4_0           any file of the hub; the end of its name will do
  gristmill pull https://models.example/some-Q4_0.gguf        a file of any server; http:// only of this machine
  HF_ENDPOINT=https://hub.example gristmill pull hf:a/b       from another hub
  gristmill chat glm-4.7-flash                                the same names stand wherever a MODEL is expected";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// ORG/REPO, ORG/REPO:FILE (with hf: before it or not), an address of a .gguf file, or a short name (`gristmill list` shows them)
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub fn run(options: Options) -> Result {
    let names = options.names.iter().map(|text| named(text)).collect::<Result<Vec<_>>>()?;
    let store = Store::user()?;
    let mut out = io::stdout().lock();
    for name in names {
        let pulled = model::pull(&store, &name)?;
        let came = if pulled.fetched == 0 { "was here already".into() } else { format!("{} fetched", size(pulled.fetched)) };
        say!("{}: {came}", pulled.name);
        // The path alone, for programs.
        writeln!(out, "{}", pulled.file.display())?;
    }
    Ok(())
}

/// What a text names, or why it names nothing.
pub fn named(text: &str) -> Result<Name> {
    if text == model::DEMO_NAME {
        let message = format!("{text} is inside the program: there is nothing to fetch or to remove");
        return Err(Failure::usage(message, format!("gristmill chat {text}")));
    }
    Name::parse(text)?.ok_or_else(|| {
        Failure::usage(format_args!("{text} is not the name of a model"), model::no_name_hint(text))
    })
}
