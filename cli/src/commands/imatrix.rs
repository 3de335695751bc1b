//! `gristmill imatrix`: measures which columns of a model's matrices matter, for `quantize`.

use super::run::read_file;
use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::interrupt::Interrupt;
use crate::model::{HELP, Model};
use crate::output;
use crate::progress::{self, Bars};
use clap::{Args, ValueHint};
use gristmill_llm::quantise::{Calibration, Importance};
use std::path::PathBuf;

const NOTES: &str = "\
Runs the model over a text and writes the sums of squares of the inputs of every matrix, by column and, for
experts, by expert, in llama-imatrix's layout. Whole chunks of --ctx tokens count; the rest of the text is left
out, and so is the output head. All products are computed in f32, from the F16 or BF16 file if there is one.

Examples:
  gristmill imatrix MODEL-F16.gguf -f text.txt -o imatrix.gguf
  gristmill imatrix MODEL-F16.gguf -f text.txt -o imatrix.gguf --chunks 100
  gristmill quantize MODEL-F16.gguf -o OUT.gguf --type IQ3_XXS --imatrix imatrix.gguf";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct ImatrixArgs {
    #[arg(value_hint = ValueHint::FilePath, help = HELP)]
    model: String,
    /// UTF-8 text file
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Importance matrix to write
    #[arg(short, long, value_name = "OUT.gguf", default_value = "imatrix.gguf", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// Chunks to read at most [default: all]
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Replace an existing OUT.gguf
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    common: Common,
}

/// Tokens of a chunk without --ctx, as in llama-imatrix.
const CHUNK: usize = 512;

pub fn run(options: ImatrixArgs) -> Result {
    options.common.check()?;
    options.common.check_computes()?;
    output::check_new(&options.output, options.force)?;
    let text = read_file(&options.file)?;
    let model = Model::open(Some(&options.model))?.with_adapters(&options.common.lora)?;
    let context = model.describe()?.context();
    let tokenizer = model.tokenizer()?;
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let tokens: Vec<u32> = bos.into_iter().chain(tokenizer.encode(&text, false, false)).collect();
    let chunk = options.common.over(context).ctx().unwrap_or(CHUNK.min(context));
    let count = (tokens.len() / chunk).min(options.chunks.unwrap_or(usize::MAX));
    if count == 0 {
        let message = format_args!("the text has {} tokens, less than a chunk of {chunk}", tokens.len());
        return Err(Failure::new(message, "give a longer text, or a smaller --ctx"));
    }
    let bars = Bars::new();
    let opened = options.common.open()?;
    let mut calibration = Calibration::load(&model.file, opened, chunk, &|p| bars.show(p))?;
    drop(bars);
    let interrupt = Interrupt::install(false)?;
    let bar = progress::count("chunks", count as u64);
    interrupt.begin();
    let mut importance = Importance {
        datasets: vec![options.file.display().to_string()],
        chunk_size: chunk as u32,
        ..Importance::default()
    };
    for part in tokens.chunks_exact(chunk).take(count) {
        // An interrupted run writes its sums so far.
        if interrupt.is_asked() {
            break;
        }
        let mut part = part.to_vec();
        if let Some(bos) = bos {
            part[0] = bos;
        }
        calibration.add(&part)?;
        importance.chunks += 1;
        bar.inc(1);
    }
    interrupt.end();
    bar.finish_and_clear();
    importance.entries = calibration.entries()?;
    let bytes = importance.entries.values().map(|entry| 4 * entry.sums.len() as u64).sum();
    let progress = ("writing", bytes);
    output::write_whole(&options.output, &interrupt, progress, |out, _| Ok(importance.write(out)?))?;
    say!(
        "wrote {}: {} matrices, {} of {count} chunks of {chunk} tokens",
        options.output.display(),
        importance.entries.len(),
        importance.chunks
    );
    Ok(())
}
