//! Parameters of attention other than queries, keys and values.

use gristmill_tensor::tensor::Tensor;
use gristmill_uop::shape::Scoring;

/// Score function, window and sinks of an attention.
#[derive(Clone, Copy)]
pub(in super::super) struct AttentionMask<'g> {
    /// Scale and soft cap of the scores.
    pub scores: Scoring,
    /// Length of the sliding window, including the token's own position; `None` for full attention.
    pub window: Option<usize>,
    /// Attention sinks: one score per head that takes part in the softmax and has no value.
    pub sinks: Option<Tensor<'g>>,
}
