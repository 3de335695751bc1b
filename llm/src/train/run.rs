//! The loop of training: batches, losses, updates, checkpoints.

use super::checkpoint::{Checkpoint, CheckpointError};
use super::schedule::Schedule;
use super::stream::Stream;
use super::trainer::{StepLoss, Trainer, TrainingBatch};
use crate::error::Error;

/// An error of a step.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The device or the model failed.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The loss or the gradients are no numbers; the parameters are those of the step before.
    #[error("{what} of step {step} is {value}; the first bad gradient is that of {tensor}")]
    NotFinite {
        /// Number of the step, from 1.
        step: u64,
        /// The loss, or the norm of the gradients.
        what: &'static str,
        /// Infinite, or no number.
        value: f32,
        /// First parameter by name whose gradient is not finite.
        tensor: String,
    },
    /// A checkpoint does not fit.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// What a step did.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepReport {
    /// Number of the step, from 1.
    pub step: u64,
    /// Mean negative log-likelihood of the targets, in nats, before the update.
    pub loss: f32,
    /// L2 norm of all gradients, before clipping.
    pub gradient_norm: f32,
    /// Learning rate of the update.
    pub rate: f64,
    /// Tokens of the step, padding included.
    pub tokens: usize,
}

/// A model in training, with its data.
pub struct Run {
    trainer: Trainer,
    stream: Stream,
    schedule: Schedule,
}

impl Run {
    /// Begins with the first step.
    pub fn new(trainer: Trainer, stream: Stream, schedule: Schedule) -> Run {
        Run {
            trainer,
            stream,
            schedule,
        }
    }
    /// Continues after a checkpoint.
    ///
    /// # Errors
    /// When the checkpoint is of other parameters, or the device fails.
    pub fn resume(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        checkpoint.check(self.trainer.places())?;
        self.trainer.restore(&checkpoint.state, checkpoint.steps)?;
        self.stream.skip_steps(checkpoint.steps);
        Ok(())
    }
    /// The model in training.
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }
    /// Epoch of the next row, from 0.
    pub fn epoch(&self) -> u64 {
        self.stream.epoch()
    }
    /// Steps that are done.
    pub fn steps(&self) -> u64 {
        self.trainer.steps()
    }
    /// Steps of the whole run.
    pub fn steps_planned(&self) -> u64 {
        self.schedule.steps
    }
    /// Whether all steps are done.
    pub fn is_done(&self) -> bool {
        self.steps() >= self.schedule.steps
    }
    /// Takes one step.
    ///
    /// # Errors
    /// When the loss is not finite, or the device fails. The parameters are then unchanged.
    pub fn step(&mut self) -> Result<StepReport, TrainError> {
        let step = self.steps();
        let batches = self.stream.next_step();
        for batch in &batches {
            self.trainer.accumulate(batch)?;
        }
        let StepLoss {
            loss,
            gradient_norm,
        } = self.trainer.finish_gradients()?;
        self.check_finite(step + 1, "the loss", loss)?;
        self.check_finite(step + 1, "the gradient norm", gradient_norm)?;
        let rate = self.schedule.rate(step);
        self.trainer.update(rate)?;
        Ok(StepReport {
            step: step + 1,
            loss,
            gradient_norm,
            rate,
            tokens: batches.iter().map(|b| b.tokens.len()).sum(),
        })
    }
    /// Takes a pass over the next rows without an update; returns the kernel and the seconds of
    /// every launch.
    ///
    /// # Errors
    /// When the device fails.
    pub fn profile(&mut self) -> Result<Vec<(String, f64)>, TrainError> {
        let batches = self.stream.next_step();
        let mut launches = Vec::new();
        for batch in &batches {
            launches = self.trainer.accumulate_timed(batch)?;
        }
        Ok(launches)
    }
    fn check_finite(&self, step: u64, what: &'static str, value: f32) -> Result<(), TrainError> {
        if value.is_finite() {
            return Ok(());
        }
        let gradients = self.trainer.gradients()?;
        let is_bad = |place: &super::Place| {
            let mut own = gradients[place.range.clone()].iter();
            own.any(|g| !g.is_finite())
        };
        let places = self.trainer.places();
        let bad = places.iter().find(|(_, place)| is_bad(place));
        Err(TrainError::NotFinite {
            step,
            what,
            value,
            tensor: bad.map_or("none".into(), |(name, _)| name.to_owned()),
        })
    }
    /// Returns the mean loss per target over batches with weights of 1.
    ///
    /// # Errors
    /// When the device fails.
    pub fn evaluate(&mut self, batches: &[(TrainingBatch, usize)]) -> Result<f64, TrainError> {
        let (mut sum, mut count) = (0.0, 0);
        for (batch, targets) in batches {
            sum += f64::from(self.trainer.evaluate(batch)?);
            count += targets;
        }
        Ok(sum / count.max(1) as f64)
    }
    /// Returns the state to continue from later.
    ///
    /// # Errors
    /// When the device fails.
    pub fn checkpoint(&self) -> Result<Checkpoint, TrainError> {
        Ok(Checkpoint {
            steps: self.steps(),
            length: self.trainer.places().len(),
            state: self.trainer.state()?,
        })
    }
}
