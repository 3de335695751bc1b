//! `gristmill tokenize`: token ids of a text.

use super::run::read_input;
use crate::failure::{Failure, Result};
use crate::model::{self, Model};
use crate::model_arg::ModelFlags;
use clap::{Args, ValueHint};
use std::io::{self, Write};

const NOTES: &str = "\
Examples:
  gristmill tokenize MODEL.gguf 'Hello, world'         token ids on one line
  gristmill tokenize MODEL.gguf < text.txt | wc -w     number of tokens of a file
  gristmill tokenize MODEL.gguf '<|user|>' --special   parse special tokens";

#[derive(Args)]
#[command(after_help = NOTES, override_usage = "gristmill tokenize [OPTIONS] <MODEL> [TEXT]")]
pub struct TokenizeArgs {
    #[arg(
        value_hint = ValueHint::FilePath, help = model::HELP,
        required_unless_present_any = ["model_flag", "hf_repo"]
    )]
    model: Option<String>,
    /// Text [default: standard input]
    #[arg(allow_hyphen_values = true)]
    text: Option<String>,
    #[command(flatten)]
    flags: ModelFlags,
    /// Parse special tokens in the text
    #[arg(long)]
    special: bool,
    /// Prepend the BOS token unless the text begins with it
    #[arg(long)]
    bos: bool,
}

pub fn run(options: TokenizeArgs) -> Result {
    let (model, text) = options.flags.with_next(options.model.as_deref(), options.text.as_deref())?;
    let tokenizer = Model::open(model)?.tokenizer()?;
    let text = match text {
        Some(text) => text.to_owned(),
        None => read_input()?,
    };
    let mut ids = tokenizer.encode(&text, options.special, false);
    if options.bos {
        let missing = || Failure::new("this model has no BOS token", "leave --bos out");
        let bos = tokenizer.bos().ok_or_else(missing)?;
        if ids.first() != Some(&bos) {
            ids.insert(0, bos);
        }
    }
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    writeln!(io::stdout().lock(), "{}", ids.join(" "))?;
    Ok(())
}
