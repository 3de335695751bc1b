//! A step, captured: what is replayed, and of which kernels.

use gristmill_runtime::Replay;
use gristmill_tensor::jit::Ready;
use std::sync::Arc;

/// Values of the variables of a step.
pub(super) type Variables = [(&'static str, i64); 2];

/// A step of a class, captured.
pub(super) struct Captured {
    pub(super) replay: Box<dyn Replay>,
    /// The function and program of every launch, in order.
    pub(super) launches: Vec<(Arc<Ready>, usize)>,
}
