//! Builds the steps of training of a model.

use super::model::Model;
use super::plan::Functions;
use super::step::StepBuilder;
use super::trained::{Trained, TrainingPlan, TrainingProducts, TrainingShape};

/// Returns the calls of a step of training. Plans made with the same `functions` share functions.
pub fn training_plan(
    model: &dyn Model,
    shape: TrainingShape,
    trained: &Trained,
    products: TrainingProducts,
    functions: &mut Functions,
) -> TrainingPlan {
    let options = shape.options([shape.sequences, shape.length], products.tile);
    let loss = shape.options([1, shape.loss_rows], products.tile);
    let (options, of) = ([&options, &loss], (trained, products.operands));
    let mut step = StepBuilder::training(model.architecture(), options, of, functions);
    model.build(&mut step);
    step.finish_training()
}
