//! `gristmill tokenize`.

use super::run::read_input;
use crate::failure::{Failure, Result};
use crate::model::{self, Model};
use clap::{Args, ValueHint};
use std::io::{self, Write};

const NOTES: &str = "\
Examples:
  gristmill tokenize MODEL.gguf 'Hello, world'      ids on one line
  gristmill tokenize MODEL.gguf < text.txt | wc -w  how many tokens a file has
  gristmill tokenize MODEL.gguf '<|user|>' --special  special tokens are plain text unless asked for";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    #[arg(value_hint = ValueHint::FilePath, help = model::HELP)]
    model: String,
    /// The text [default: all of standard input]
    #[arg(allow_hyphen_values = true)]
    text: Option<String>,
    /// Recognise special tokens in the text
    #[arg(long)]
    special: bool,
    /// Put the beginning-of-sequence token before, unless it is there
    #[arg(long)]
    bos: bool,
}

pub fn run(options: Options) -> Result {
    let tokenizer = Model::open(Some(&options.model))?.tokenizer()?;
    let text = match options.text {
        Some(text) => text,
        None => read_input()?,
    };
    let mut ids = tokenizer.encode(&text, options.special, false);
    if options.bos {
        let missing = || Failure::new("this model has no beginning-of-sequence token", "leave --bos out");
        let bos = tokenizer.bos().ok_or_else(missing)?;
        if ids.first() != Some(&bos) {
            ids.insert(0, bos);
        }
    }
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    writeln!(io::stdout().lock(), "{}", ids.join(" "))?;
    Ok(())
}
