//! Builds the steps of training of a model.

use super::model::Model;
use super::plan::Functions;
use super::step::StepBuilder;
use super::trained::{Trained, TrainingPlan, TrainingShape};

/// Returns the calls of a step of training. Plans made with the same `functions` share functions.
pub fn training_plan(
    model: &dyn Model,
    shape: TrainingShape,
    trained: &Trained,
    functions: &mut Functions,
) -> TrainingPlan {
    let options = shape.options([shape.sequences, shape.length]);
    let loss = shape.options([1, shape.loss_rows]);
    let options = [&options, &loss];
    let mut step = StepBuilder::training(model.architecture(), options, trained, functions);
    model.build(&mut step);
    step.finish_training()
}
