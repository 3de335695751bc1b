//! `gristmill merge`: adds adapters to the weights of a model.

use crate::failure::{Failure, Result};
use crate::flags::Lora;
use crate::interrupt::Interrupt;
use crate::model::{HELP, Model};
use crate::output;
use crate::size::size;
use clap::{Args, ValueHint};
use gristmill_llm::quantise::{writable_type, writable_types};
use gristmill_llm::train::{Merge, MergeError};
use std::path::PathBuf;

const NOTES: &str = "\
A changed weight keeps its type, and so it is rounded again; what adapters do not change is copied.

Examples:
  gristmill merge MODEL.gguf adapter.gguf -o merged.gguf
  gristmill merge MODEL.gguf adapter.gguf=0.5 other.gguf -o merged.gguf     half of one, and another
  gristmill merge MODEL-F16.gguf adapter.gguf -o merged.gguf --quant q4_k   all matrices in Q4_K";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct MergeArgs {
    #[arg(value_hint = ValueHint::FilePath, help = HELP)]
    model: String,
    /// LoRA adapters of the model; SCALE multiplies the effect of one
    #[arg(required = true, value_name = "ADAPTER[=SCALE]", value_parser = Lora::parse, value_hint = ValueHint::FilePath)]
    adapters: Vec<Lora>,
    /// Model to write
    #[arg(short, long, value_name = "OUT.gguf", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// Write all matrices in this type, such as f16, q8_0 or q4_k
    #[arg(long, value_name = "TYPE")]
    quant: Option<String>,
    /// Replace an existing OUT.gguf
    #[arg(long)]
    force: bool,
}

pub fn run(options: MergeArgs) -> Result {
    let unknown = |name: &str| {
        let message = format!("{name} is no type that can be written");
        Failure::usage(message, format!("choose one of: {}", writable_types().join(", ")))
    };
    let quant = options.quant.as_deref();
    let quant = quant.map(|name| writable_type(name).ok_or_else(|| unknown(name))).transpose()?;
    output::check_new(&options.output, options.force)?;
    let model = Model::open(Some(&options.model))?.with_adapters(&options.adapters)?;
    model.describe()?;
    let merge = Merge::new(&model.file, quant)?;
    let interrupt = Interrupt::install(false)?;
    let progress = ("merging", merge.bytes());
    output::write_whole(&options.output, &interrupt, progress, |out, goes_on| {
        Ok(merge.write(out, goes_on)?)
    })?;
    say!(
        "wrote {}: {}, adapters added to {} of {} tensors",
        options.output.display(),
        size(merge.bytes()),
        merge.adapted(),
        merge.tensors()
    );
    Ok(())
}

impl From<MergeError> for Failure {
    fn from(error: MergeError) -> Failure {
        match error {
            MergeError::File(error) => error.into(),
            MergeError::Model(error) => error.into(),
            error => {
                let hint = error.hint().unwrap_or_else(|| "begin again".into());
                Failure::new(error, hint)
            }
        }
    }
}
