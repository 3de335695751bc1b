//! The adapter, data stream, schedule and trainer of a run.

use super::args::{CourseName, TrainArgs};
use super::data::ROW;
use crate::failure::{Failure, Result};
use crate::model::{Model, adapter_failure};
use crate::progress::Bars;
use crate::size::size;
use gristmill_backend::Opened;
use gristmill_llm::arch::{self, Trained, TrainingShape};
use gristmill_llm::synth::{ModelConfig, add_draft_block};
use gristmill_llm::train::{
    Adapter, Course, PlannedTraining, Schedule, StreamOptions, Targets, Trainer, TrainerOptions,
    TrainingMemory, ignored_elsewhere, initial_adapter, initial_weights, open_adapter,
};
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Rank of the adapters without --rank and --init.
const RANK: usize = 16;
/// Default number of epochs.
const EPOCHS: f64 = 3.0;
/// Logits computed at a time, in bytes.
const LOSS_BYTES: usize = 256 << 20;

fn is_config(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json")) && path.is_file()
}

fn read_config(path: &Path) -> Result<String> {
    let read = || {
        let (file, mut text) = (File::open(path)?, String::new());
        file.take(LONGEST_CONFIG).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| Failure::file("read", path, error))
}

/// What is trained, with its first values.
pub enum Start {
    /// All weights, as the file or the configuration has them.
    Full,
    /// The block for draft tokens, of which this is the number.
    DraftBlock(usize),
    /// Low-rank adapters with these matrices.
    Adapter(Adapter),
}

/// Largest configuration in bytes.
const LONGEST_CONFIG: u64 = 1 << 20;

impl TrainArgs {
    /// Opens the model, or begins one with random weights if MODEL is a .json configuration.
    pub fn open_model(&self) -> Result<Model> {
        let Some(path) = self.model.name().map(Path::new).filter(|path| is_config(path)) else {
            let mut model = Model::open(self.model.name())?;
            if self.draft_block && model.describe()?.draft_caches().is_empty() {
                add_draft_block(&mut model.file, self.seed)?;
            }
            return Ok(model);
        };
        if !self.full {
            return Err(Failure::usage(
                format_args!("{} describes a model without weights", path.display()),
                "--full trains all weights, from random ones",
            ));
        }
        let hint = "docs/training.md lists the fields of a configuration";
        let failed = |error: &dyn Display| Failure::new(format_args!("{}: {error}", path.display()), hint);
        let config = ModelConfig::parse(&read_config(path)?).map_err(|error| failed(&error))?;
        let tokenizer = Model::open(Some(&config.tokenizer))?;
        let metadata = tokenizer.file.metadata();
        let file = config.initial_model(metadata, self.seed).map_err(|error| match error.hint() {
            Some(hint) => failed(&error).with_hint(&format!("; {hint}")),
            None => failed(&error),
        })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Model { name, file, path: None })
    }
    /// The adapter that training begins with.
    pub fn adapter(&self, described: &dyn arch::Model, model: &Model) -> Result<Adapter> {
        if let Some(path) = &self.init {
            let failed = |error| adapter_failure(path, error, "--init");
            let file = open_adapter(path, described, model.file.metadata()).map_err(failed)?;
            let adapter = Adapter::read(&file, described).map_err(failed)?;
            let rank = adapter.low_rank().shapes.values().next().map(|shape| shape.rank);
            let differs = |flag: Option<f32>, own: f32| flag.is_some_and(|flag| flag != own);
            if differs(self.rank.map(f32::from), rank.unwrap_or_default() as f32) || differs(self.alpha, adapter.alpha) {
                return Err(Failure::usage(
                    format_args!("the adapter of --init has rank {} and alpha {}", rank.unwrap_or_default(), adapter.alpha),
                    "leave --rank and --alpha out",
                ));
            }
            return Ok(adapter);
        }
        let targets = match self.targets.as_str() {
            "all" => Targets::All,
            "portable" => Targets::Portable,
            names => Targets::Names(names.split(',').map(|name| name.trim().to_owned()).collect()),
        };
        let weights = targets.choose(described);
        if weights.is_empty() {
            return Err(Failure::usage(
                format_args!("no linear layer of the model has a name with {}", self.targets),
                "--targets takes all, portable, or parts of tensor names; `gristmill inspect --tensors` lists them",
            ));
        }
        let ignored = ignored_elsewhere(described, &weights);
        if let Some(first) = ignored.first() {
            say!("warning: llama.cpp loads adapters of {first} and {} like it, and ignores them; --targets portable leaves them out", ignored.len() - 1);
        }
        let rank = self.rank.map_or(RANK, usize::from);
        let alpha = self.alpha.unwrap_or(2.0 * rank as f32);
        Ok(initial_adapter(described, &weights, rank, alpha, self.seed))
    }
    pub fn shape(&self, model: &dyn arch::Model) -> TrainingShape {
        let length = self.common.ctx().unwrap_or(ROW.min(model.context()));
        let sequences = usize::from(self.batch);
        let most = (LOSS_BYTES / size_of::<f32>() / model.vocabulary()).max(1);
        let tokens = sequences * length;
        let loss_rows = (1..=most.min(tokens)).rev().find(|&rows| tokens.is_multiple_of(rows));
        TrainingShape {
            sequences,
            length,
            packed: !self.no_pack,
            loss_rows: loss_rows.unwrap_or(1),
        }
    }
    pub fn stream(&self, model: &Model, shape: TrainingShape) -> Result<StreamOptions> {
        let tokenizer = model.tokenizer()?;
        Ok(StreamOptions {
            length: shape.length,
            sequences: shape.sequences,
            accumulate: self.accumulate.into(),
            seed: (!self.no_shuffle).then_some(self.seed),
            pack: shape.packed,
            padding: tokenizer.pad().or(tokenizer.eos()).unwrap_or(0),
        })
    }
    pub fn schedule(&self, rows: usize) -> Schedule {
        let of_step = usize::from(self.batch) * usize::from(self.accumulate);
        let by_epochs = || {
            let rows = rows as f64 * self.epochs.unwrap_or(EPOCHS);
            (rows / of_step as f64).ceil().max(1.0) as u64
        };
        Schedule {
            rate: self.lr,
            warmup: self.warmup,
            steps: self.steps.unwrap_or_else(by_epochs),
            course: match self.schedule {
                CourseName::Cosine => Course::Cosine,
                CourseName::Constant => Course::Constant,
            },
        }
    }
    /// Plans and loads the trainer; returns it and the memory that it takes.
    pub fn trainer(
        &self,
        model: &Model,
        opened: Opened,
        start: &Start,
        shape: TrainingShape,
    ) -> Result<(Trainer, TrainingMemory)> {
        let options = TrainerOptions {
            shape,
            trained: match start {
                Start::Full => Trained::Full,
                Start::DraftBlock(block) => Trained::DraftBlock(*block),
                Start::Adapter(adapter) => Trained::LowRank(adapter.low_rank()),
            },
            clip: self.clip,
            weight_decay: self.weight_decay,
            exact: self.common.is_exact(),
        };
        let bars = Bars::named(&model.name);
        let show = |progress| bars.show(progress);
        let planned = PlannedTraining::new(&model.file, opened, options, &show)?;
        let memory = planned.memory();
        say!(
            "memory: {} = {} of weights, {} of parameters and moments, {} of activations",
            size(memory.total()),
            size(memory.weights),
            size(memory.parameters),
            size(memory.activations)
        );
        let mut trainer = planned.load(&show)?;
        match start {
            Start::Adapter(adapter) => {
                for (name, tensor) in &adapter.tensors {
                    trainer.set_parameter(name, &tensor.values)?;
                }
            }
            Start::Full | Start::DraftBlock(_) => {
                let places = trainer.places().clone();
                initial_weights(&model.file, &places, |name, values| {
                    Ok::<_, Failure>(trainer.set_parameter(name, values)?)
                })?;
            }
        }
        Ok((trainer, memory))
    }
}
