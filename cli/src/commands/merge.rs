//! `gristmill merge`: adds adapters to the weights of a model.

use crate::failure::{Failure, Result};
use crate::flags::Lora;
use crate::interrupt::Interrupt;
use crate::model::{HELP, Model};
use crate::output;
use crate::progress;
use crate::size::size;
use clap::{Args, ValueHint};
use gristmill_llm::train::{Merge, MergeError, writable_type, writable_types};
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

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
    output::check(&options.output)?;
    if options.output.exists() && !options.force {
        return Err(Failure::new(
            format_args!("{} exists", options.output.display()),
            "choose another -o, or replace it with --force",
        ));
    }
    let model = Model::open(Some(&options.model))?.with_adapters(&options.adapters)?;
    model.describe()?;
    let merge = Merge::new(&model.file, quant)?;
    write(&merge, &options.output)?;
    say!(
        "wrote {}: {}, adapters added to {} of {} tensors",
        options.output.display(),
        size(merge.bytes()),
        merge.adapted(),
        merge.tensors()
    );
    Ok(())
}

/// Writes the model beside its place, and moves it there when it is complete.
fn write(merge: &Merge<'_>, output: &Path) -> Result {
    let failed = |error: io::Error| Failure::file("write", output, error);
    let mut beside = output.as_os_str().to_owned();
    beside.push(".tmp");
    let beside = PathBuf::from(beside);
    let file = File::create(&beside).map_err(failed)?;
    let interrupt = Interrupt::install(false)?;
    let bar = progress::bytes("merging", merge.bytes());
    interrupt.begin();
    let mut goes_on = |written| {
        bar.set_position(written);
        !interrupt.is_asked()
    };
    let written = merge.write(BufWriter::with_capacity(1 << 20, &file), &mut goes_on);
    let written = written.map_err(Failure::from).and_then(|()| {
        file.sync_all().map_err(failed)?;
        fs::rename(&beside, output).map_err(failed)
    });
    interrupt.end();
    bar.finish_and_clear();
    // An incomplete file is removed.
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
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
