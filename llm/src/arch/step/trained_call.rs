//! What the builder of a step of training, and the capture of one of its calls, keep.

use super::super::plan::{BoundCall, Options};
use super::super::trained::Trained;
use gristmill_uop::Id;
use gristmill_uop::dtype::Scalar;
use std::cell::{Cell, RefCell};

/// State of a builder of a step of training.
pub(super) struct Training<'a> {
    pub trained: &'a Trained,
    pub operands: Scalar,
    /// Options of the function of the loss, which has other rows.
    pub loss_options: &'a Options,
    pub loss: Option<BoundCall>,
    pub evaluation: Option<BoundCall>,
    /// Backward passes in order of the forward pass.
    pub backward: Vec<BoundCall>,
}

/// Passes of a step of training that a call is captured for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    Forward,
    Backward,
    /// Forward pass and loss, without gradients.
    Evaluation,
}

/// What the capture of one call keeps for its gradients.
pub(super) struct TrainedCall<'o> {
    pub trained: &'o Trained,
    pub operands: Scalar,
    pub pass: Pass,
    /// Hidden rows that the call reads, and their layer.
    pub hidden: Cell<Option<(usize, Id)>>,
    /// Parameters that the call reads.
    pub parameters: RefCell<Vec<(String, Id)>>,
    /// Results and the gradients of the loss with respect to them.
    pub results: RefCell<Vec<(Id, Id)>>,
}
