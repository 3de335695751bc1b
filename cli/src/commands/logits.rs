//! `gristmill logits`: logits of given tokens as a NumPy file.

use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::model::{self, Model};
use crate::model_arg::ModelArg;
use crate::npy;
use crate::progress::{self, Bars};
use clap::Args;
use gristmill_llm::arch::Logits;
use gristmill_llm::engine::{TokenRun, WholePool};
use gristmill_llm::sampling::not_a_number;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

const NOTES: &str = "\
Examples:
  gristmill logits MODEL.gguf --tokens 1,2,3 -o logits.npy          then numpy.load(\"logits.npy\")
  gristmill logits MODEL.gguf --tokens 1,2,3 --exact -o exact.npy   f32 arithmetic, for comparison";

#[derive(Args)]
#[command(after_help = NOTES, override_usage = "gristmill logits [OPTIONS] <MODEL> --tokens <ID,…> -o <FILE.npy>")]
pub struct LogitsArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Token ids
    #[arg(long, value_name = "ID,…", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// Run one decode step per token instead of prefill chunks
    #[arg(long)]
    step: bool,
    /// Output file: float32 [tokens, vocabulary]
    #[arg(short, long, value_name = "FILE.npy")]
    output: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// Minimum default context, in tokens.
const LEAST_CONTEXT: usize = 512;
/// Maximum rows of logits per step, which bounds memory.
const ROWS: usize = 128;

pub fn run(options: LogitsArgs) -> Result {
    options.common.check()?;
    let model = Model::open(options.model.name())?.with_adapters(&options.common.lora)?;
    let many = options.tokens.len() > LEAST_CONTEXT;
    let mut engine = model.load(&options.common, many.then_some(options.tokens.len()))?;
    engine.check_tokens(&options.tokens)?;
    if options.tokens.len() > engine.context() {
        return Err(gristmill_llm::engine::Error::Full(engine.context()).into());
    }
    let rows = if options.step { 1 } else { ROWS.min(engine.chunk()) };
    let bars = Bars::new();
    if rows > 1 {
        engine.prepare_all_logits(options.tokens.len().min(rows), &|p| bars.show(p))?;
    }
    drop(bars);
    let failed = |e| Failure::file("write", &options.output, e);
    let mut out = BufWriter::new(File::create(&options.output).map_err(failed)?);
    npy::header(&mut out, options.tokens.len(), engine.model().vocabulary()).map_err(failed)?;
    let bar = progress::count("tokens", options.tokens.len() as u64);
    let (mut at, mut bad) = (0, None);
    let (vocabulary, pool) = (engine.model().vocabulary(), WholePool::new(&engine));
    for tokens in options.tokens.chunks(rows) {
        let run = TokenRun { tokens, position: at, pages: pool.pages(), contiguous: true };
        let logits = engine.logits(run, Logits::All)?;
        let found = not_a_number(&logits).map(|(i, value)| (at + i / vocabulary, i % vocabulary, value));
        bad = bad.or(found);
        npy::numbers(&mut out, &logits).map_err(failed)?;
        at += tokens.len();
        bar.set_position(at as u64);
    }
    bar.finish_and_clear();
    out.flush().map_err(failed)?;
    // NaN is written too, with a warning.
    let warning = |(position, token, value)| format!("the logit of token {token} is {value}, at position {position}");
    model::warn(bad.map(warning).as_slice());
    Ok(())
}
