//! `gristmill perplexity`: how well a model predicts a text.

use super::run::read_file;
use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::model::{self, Model};
use crate::model_arg::ModelFlags;
use crate::progress::{self, Bars};
use clap::{Args, ValueEnum, ValueHint};
use gristmill_llm::perplexity::{perplexity, perplexity_of_halves};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const NOTES: &str = "\
Examples:
  gristmill perplexity MODEL.gguf text.txt                windows of 2048 tokens
  gristmill perplexity -m MODEL.gguf -f text.txt -c 512   windows of 512 tokens
  gristmill perplexity MODEL.gguf text.txt --exact        f32 instead of int8 activations
  gristmill perplexity MODEL.gguf text.txt -c 512 --compat llama.cpp
                                                          as `llama-perplexity -c 512` counts";

#[derive(Args)]
#[command(after_help = NOTES, override_usage = "gristmill perplexity [OPTIONS] <MODEL> <FILE>")]
pub struct PerplexityArgs {
    #[arg(
        value_hint = ValueHint::FilePath, help = model::HELP,
        required_unless_present_any = ["model_flag", "hf_repo"]
    )]
    model: Option<String>,
    /// UTF-8 text file
    #[arg(value_name = "FILE")]
    text: Option<String>,
    #[command(flatten)]
    flags: ModelFlags,
    /// FILE as a flag
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Count as another program: whole windows, only the second half of each is scored
    /// [default window: 512]
    #[arg(long, value_name = "PROGRAM", value_enum)]
    compat: Option<Compat>,
    #[command(flatten)]
    common: Common,
}

/// Program whose way of counting is followed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Compat {
    /// llama-perplexity of llama.cpp
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

/// llama-perplexity's default window in tokens.
const LLAMA_CPP_WINDOW: usize = 512;

/// Default window in tokens, which bounds the cost of long contexts.
const WINDOW: usize = 2048;

pub fn run(options: PerplexityArgs) -> Result {
    options.common.check()?;
    let (model, file) = options.flags.with_next(options.model.as_deref(), options.text.as_deref())?;
    let text = match (file.map(Path::new), options.file.as_deref()) {
        (Some(path), None) | (None, Some(path)) => read_file(path)?,
        (None, None) => {
            return Err(Failure::usage("there is no text", "give a file after MODEL, or with -f FILE"));
        }
        (Some(_), Some(_)) => {
            return Err(Failure::usage("the text is given twice", "give it after MODEL or with -f FILE"));
        }
    };
    let model = Model::open(model)?.with_adapters(&options.common.lora)?;
    let tokenizer = model.tokenizer()?;
    let compat = options.compat.is_some();
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let mut tokens = tokenizer.encode(&text, false, false);
    if compat {
        tokens.splice(0..0, bos);
    }
    if tokens.len() + bos.iter().len() < 2 {
        return Err(Failure::new("the text is too short to predict a token", "give at least two tokens"));
    }
    let most = model.describe()?.context();
    let usual = if compat { LLAMA_CPP_WINDOW } else { WINDOW };
    let mut engine = model.load(&options.common, Some(usual.min(most)))?;
    let bars = Bars::new();
    engine.prepare_all_logits(tokens.len().min(engine.context()), &|p| bars.show(p))?;
    drop(bars);
    let window = engine.context();
    if compat && tokens.len() < 2 * window {
        let message = format_args!("the text has {} tokens; --compat llama.cpp needs two windows of {window}", tokens.len());
        return Err(Failure::new(message, format!("give a longer text, or --ctx {} or less", tokens.len() / 2)));
    }
    let bar = progress::count("tokens", tokens.len() as u64);
    let count = if compat { perplexity_of_halves } else { perplexity };
    let likelihood = count(&mut engine, &tokens, bos, window, &mut |done, total, so_far| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(format!("{:.4} nats", so_far.mean()));
    });
    bar.finish_and_clear();
    let likelihood = likelihood?;
    if likelihood.tokens == 0 {
        return Err(Failure::new("a window of one token predicts nothing", "give a larger --ctx"));
    }
    let mut out = io::stdout().lock();
    writeln!(out, "tokens                        {}", tokens.len())?;
    writeln!(out, "predicted                     {} in windows of {window}", likelihood.tokens)?;
    writeln!(out, "mean negative log-likelihood  {:.6} nats", likelihood.mean())?;
    writeln!(out, "perplexity                    {:.6}", likelihood.perplexity())?;
    Ok(())
}
