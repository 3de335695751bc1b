//! `gristmill perplexity`.

use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::model::{self, Model};
use crate::progress::{self, Bars};
use clap::{Args, ValueHint};
use gristmill_llm::perplexity::perplexity;
use std::io::{self, Write};
use std::path::PathBuf;

const NOTES: &str = "\
Examples:
  gristmill perplexity MODEL.gguf text.txt               of windows of 2048 tokens
  gristmill perplexity MODEL.gguf text.txt --ctx 512     of shorter ones
  gristmill perplexity MODEL.gguf text.txt --exact       what arithmetic in eight bits costs is the difference";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    #[arg(value_hint = ValueHint::FilePath, help = model::HELP)]
    model: String,
    /// The text, UTF-8
    file: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// Most tokens of a window where --ctx does not say: longer ones cost more than they tell.
const WINDOW: usize = 2048;

pub fn run(options: Options) -> Result {
    let bytes = std::fs::read(&options.file).map_err(|e| Failure::file("read", &options.file, e))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let (path, at) = (options.file.display(), e.utf8_error().valid_up_to());
        Failure::new(format_args!("{path} is not UTF-8 at byte {at}"), "convert it, with iconv for example")
    })?;
    let model = Model::open(Some(&options.model))?;
    let tokenizer = model.tokenizer()?;
    let tokens = tokenizer.encode(&text, false, false);
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    if tokens.len() + bos.iter().len() < 2 {
        return Err(Failure::new("the text is too short: nothing in it can be predicted", "give at least two tokens"));
    }
    let most = model.describe()?.context();
    let mut engine = model.load(&options.common, Some(WINDOW.min(most)))?;
    let bars = Bars::new();
    engine.prepare_all_logits(tokens.len().min(engine.context()), &|p| bars.show(p))?;
    drop(bars);
    let window = engine.context();
    let bar = progress::count("tokens", tokens.len() as u64);
    let likelihood = perplexity(&mut engine, &tokens, bos, window, &mut |done, total, so_far| {
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
