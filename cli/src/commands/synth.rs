//! `gristmill synth`.

use crate::failure::{Failure, Result};
use crate::progress;
use clap::Args;
use gristmill_llm::synth;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

const NOTES: &str = "\
Examples:
  gristmill synth youtu-llm-2b --quant q4_0 -o youtu.gguf     a file of 1.2 GB that loads and runs like the real one
  gristmill bench synth:youtu-llm-2b:q4_0                     most commands take it without a file";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// Which model's shape
    preset: String,
    /// How its weights are quantised
    #[arg(long, value_name = "QUANT")]
    quant: String,
    /// Where to write it
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub fn run(options: Options) -> Result {
    // Names first: a mistake must not empty a file.
    let total = synth::plan(&options.preset, &options.quant)?.bytes();
    let failed = |e| Failure::file("write", &options.output, e);
    let file = File::create(&options.output).map_err(failed)?;
    let regular = file.metadata().is_ok_and(|m| m.is_file());
    let bar = progress::bytes("writing", total);
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let written = synth::build(&options.preset, &options.quant, &mut out, &|done, _| bar.set_position(done));
    bar.finish_and_clear();
    let written = match written {
        Ok(()) => out.into_inner().map(drop).map_err(|e| failed(e.into_error())),
        Err(error) => Err(error.into()),
    };
    // Half a model helps nobody.
    if written.is_err() && regular {
        let _ = std::fs::remove_file(&options.output);
    }
    written
}
