//! `gristmill convert`: writes a checkpoint of transformers as a GGUF file, as llama.cpp's
//! `convert_hf_to_gguf.py`.

use super::quantize::{show, unknown_type, write};
use crate::failure::{Failure, Result};
use crate::model::warn;
use crate::output;
use clap::{Args, ValueHint};
use gristmill_llm::convert::{self, ConvertError};
use gristmill_llm::quantise::{Mix, Quantise, QuantiseOptions};
use std::path::PathBuf;

/// Type that follows from that of the checkpoint.
const AUTO: &str = "auto";

const NOTES: &str = "\
FOLDER has config.json, model.safetensors or several files with model.safetensors.index.json, and
tokenizer.json or tokenizer.model; tokenizer_config.json, generation_config.json and chat_template.jinja are
read where they exist. docs/convert.md lists the families.

--type auto keeps f16 and bf16, and writes f16 for a checkpoint in f32. The other types are those of `quantize`,
such as F32, F16, BF16, Q8_0 and Q4_K_M. MXFP4 blocks of gpt-oss keep their type.

Examples:
  gristmill convert Qwen3-0.6B -o qwen3-0.6b.gguf
  gristmill convert Qwen3-0.6B -o qwen3-0.6b-Q4_K_M.gguf --type Q4_K_M
  gristmill convert Qwen3-0.6B --dry-run                               types and sizes alone";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct ConvertArgs {
    /// Folder of a checkpoint, as transformers saves it
    #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    folder: PathBuf,
    /// Model to write
    #[arg(short, long, value_name = "OUT.gguf", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Type of most matrices: auto, F32, F16, BF16, Q8_0 or another of `quantize`
    #[arg(long = "type", alias = "outtype", value_name = "TYPE", default_value = AUTO)]
    file_type: String,
    /// Show types and sizes, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Threads [default: all cores]
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Replace an existing OUT.gguf
    #[arg(long)]
    force: bool,
}

pub fn run(options: ConvertArgs) -> Result {
    let chosen = match options.file_type.eq_ignore_ascii_case(AUTO) {
        true => None,
        false => {
            let name = &options.file_type;
            Some(Mix::parse(name).ok_or_else(|| unknown_type(name))?)
        }
    };
    if let (Some(output), false) = (&options.output, options.dry_run) {
        output::check_new(output, options.force)?;
    }
    let converted = convert::open(&options.folder)?;
    warn(&converted.warnings);
    let usual = match converted.source_type {
        "bf16" => "BF16",
        _ => "F16",
    };
    let file_type = chosen.or_else(|| Mix::parse(usual));
    let file_type = file_type.ok_or_else(|| unknown_type(usual))?;
    let threads = options.threads.filter(|n| *n > 0);
    let threads = threads.unwrap_or_else(gristmill_backend::parallel::cores);
    let settings = QuantiseOptions {
        keep_quantised: true,
        ..QuantiseOptions::new(file_type, threads)
    };
    let quantise = Quantise::new(&converted.file, &settings)?;
    if options.dry_run {
        return show(&quantise);
    }
    let Some(output) = &options.output else {
        return Err(Failure::usage(
            "there is no OUT.gguf",
            "give it with -o, or see --dry-run",
        ));
    };
    write(&quantise, output, "converting", false)
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Failure {
        let hint = error.hint();
        let hint = hint.unwrap_or_else(|| "download the model again".into());
        Failure::new(error, hint)
    }
}
