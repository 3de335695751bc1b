//! What attention is told besides what it reads.

use gristmill_tensor::tensor::Tensor;
use gristmill_uop::shape::Scoring;

/// Part of an attention besides queries, keys and values.
#[derive(Clone, Copy)]
pub(in super::super) struct Sight<'g> {
    /// What products of queries and keys become.
    pub scores: Scoring,
    /// Positions that a token sees, its own included, unless it sees all before it.
    pub window: Option<usize>,
    /// A score of each head that takes a part of the weights and has no value.
    pub sinks: Option<Tensor<'g>>,
}
