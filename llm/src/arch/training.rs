//! Builds the steps of training of a model, and those that measure its activations.

use super::model::Model;
use super::plan::{DraftOptions, DraftSource, Functions, Options, Plan};
use super::step::StepBuilder;
use super::trained::{Trained, TrainingPlan, TrainingProducts, TrainingShape};
use gristmill_uop::dtype::Scalar;

/// Returns the calls of a step of training. Plans made with the same `functions` share functions.
pub fn training_plan(
    model: &dyn Model,
    shape: TrainingShape,
    trained: &Trained,
    products: TrainingProducts,
    functions: &mut Functions,
) -> TrainingPlan {
    let draft = matches!(trained, Trained::DraftBlock(_)).then_some(DraftOptions {
        source: DraftSource::Model,
        rows: shape.tokens(),
    });
    let options = Options {
        draft,
        ..shape.options([shape.sequences, shape.length], products.tile)
    };
    let loss = shape.options([1, shape.loss_rows], products.tile);
    let (options, of) = ([&options, &loss], (trained, products.operands));
    let mut step = StepBuilder::training(model.architecture(), options, of, functions);
    model.build(&mut step);
    if draft.is_some() {
        model.build_draft(&mut step);
    }
    step.finish_training()
}

/// Returns the calls of a forward pass without head that adds the squares of the inputs of every
/// matrix to [`Bind::Squares`](super::plan::Bind::Squares), in f32. `options` are those of a
/// [`TrainingShape`].
pub fn calibration_plan(model: &dyn Model, options: &Options, functions: &mut Functions) -> Plan {
    let of = (&Trained::Nothing, Scalar::F32);
    let mut step = StepBuilder::training(model.architecture(), [options, options], of, functions);
    model.build(&mut step);
    step.finish()
}
