//! The trained adapter or model as a file.

use super::args::TrainArgs;
use super::setup::Start;
use crate::failure::{Failure, Result};
use crate::model::Model;
use crate::output;
use gristmill_llm::arch;
use gristmill_llm::file::is_draft_block_path;
use gristmill_llm::train::{Adapter, Run, check_exportable, is_peft, write_model, write_peft};
use std::fs::{self, File};
use std::io;

/// The adapter that a run has trained.
pub fn trained(start: &Adapter, run: &Run) -> Result<Adapter> {
    let (trainer, values) = (run.trainer(), run.trainer().parameters()?);
    let architecture = trainer.model().architecture();
    Ok(Adapter::from_parameters(architecture, start.alpha, trainer.places(), &values))
}

impl TrainArgs {
    /// Refuses, before training, outputs that cannot be written.
    pub fn check_output(&self, start: &Start, model: &dyn arch::Model) -> Result {
        if let Some(page) = &self.html {
            output::check(page)?;
        }
        let adapter = match start {
            _ if !is_peft(&self.output) => return output::check(&self.output),
            Start::Full | Start::DraftBlock(_) => {
                return Err(Failure::usage(
                    "--full and --draft-block write a model, and folders and .safetensors files hold adapters",
                    "give -o MODEL.gguf",
                ));
            }
            Start::Adapter(adapter) => adapter,
        };
        let weights: Vec<String> = adapter.low_rank().shapes.into_keys().collect();
        check_exportable(model.architecture(), &weights).map_err(|error| {
            let hint = "give -o ADAPTER.gguf, or leave such weights out by --targets, for example --targets attn_";
            Failure::usage(error, hint)
        })
    }
    /// Writes the trained adapter or model.
    pub fn write(&self, model: &Model, start: &Start, run: &Run) -> Result {
        let failed = |error: io::Error| Failure::file("write", &self.output, error);
        if let Start::Adapter(adapter) = start
            && is_peft(&self.output)
        {
            let adapter = trained(adapter, run)?;
            let metadata = model.file.metadata();
            write_peft(&adapter, run.trainer().model(), metadata, &self.output)
                .map_err(|error| Failure::new(error, "free disk space, or choose another folder"))?;
            say!("wrote {}", self.output.display());
            return Ok(());
        }
        let beside = self.output.with_extension("gguf.tmp");
        let file = File::create(&beside).map_err(failed)?;
        let out = io::BufWriter::new(&file);
        match start {
            Start::Full | Start::DraftBlock(_) => {
                let (trainer, file) = (run.trainer(), &model.file);
                let is_block = matches!(start, Start::DraftBlock(_)) && is_draft_block_path(&self.output);
                let keeps = |tensor: &str| !is_block || file.is_of_draft_block(tensor);
                write_model(file, trainer.places(), &trainer.parameters()?, &keeps, out)?;
            }
            Start::Adapter(adapter) => trained(adapter, run)?.write(out)?,
        }
        file.sync_all().map_err(failed)?;
        fs::rename(&beside, &self.output).map_err(failed)?;
        say!("wrote {}", self.output.display());
        Ok(())
    }
}
