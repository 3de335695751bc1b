//! Hints of errors of training.

use crate::failure::Failure;
use gristmill_llm::train::{FullError, TrainError};

/// The failure of a step or of a checkpoint.
pub fn failure(error: TrainError) -> Failure {
    use TrainError::{Checkpoint, Engine, NotFinite};
    match error {
        Engine(error) => error.into(),
        NotFinite { .. } => Failure::new(
            error,
            "lower --lr, or lengthen --warmup; --checkpoint keeps the last good state",
        ),
        Checkpoint(_) => Failure::new(
            error,
            "begin again without --resume, or give the flags and files of the first run",
        ),
    }
}

impl From<FullError> for Failure {
    fn from(error: FullError) -> Failure {
        match error {
            FullError::File(error) => error.into(),
            FullError::Quantised { .. } => {
                Failure::new(error, "leave --full out to train an adapter of it")
            }
        }
    }
}
