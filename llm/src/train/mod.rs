//! Training on a GGUF file: low-rank adapters of packed weights, or all weights of a small model.

mod adapter;
mod checkpoint;
mod data;
mod full;
mod merge;
mod optimizer;
mod parameters;
mod peft;
mod run;
mod schedule;
mod stacked;
mod stream;
mod trainer;

pub use adapter::{
    Adapter, AdapterError, AdapterTensor, Targets, ignored_elsewhere, initial_adapter,
};
pub use checkpoint::{Checkpoint, CheckpointError, Fingerprint};
pub use data::{Example, ExampleReader, LineError, LossOn};
pub use full::{FullError, initial_weights, write_model};
pub use merge::{Merge, MergeError};
pub use parameters::{Place, Places};
pub use peft::{check_exportable, is_peft, open_adapter, write_peft};
pub use run::{Run, StepReport, TrainError};
pub use schedule::{Course, Schedule};
pub use stacked::stacked;
pub use stream::{Stream, StreamOptions};
pub use trainer::{
    PlannedTraining, StepLoss, Trainer, TrainerOptions, TrainingBatch, TrainingMemory,
};
