//! Low-rank adapters of weights (LoRA, arXiv 2106.09685).

use std::collections::BTreeMap;

/// Adapter of one weight: `y = W x + scale · B (A x)`.
///
/// `A` is `[rank, in]` and `B` is `[out, rank]`, with a leading axis of experts where `W` has one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LowRankShape {
    /// Rows of `A`, columns of `B`.
    pub rank: usize,
    /// Factor of the product.
    pub scale: f32,
}

impl LowRankShape {
    /// Shape of an adapter file with this alpha: the factor is `alpha / rank`, or 1 for an alpha of
    /// 0.
    pub fn new(rank: usize, alpha: f32) -> LowRankShape {
        let scale = match alpha {
            0.0 => 1.0,
            alpha => alpha / rank as f32,
        };
        LowRankShape { rank, scale }
    }
}

/// Low-rank adapters by the names of their weights.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LowRank {
    /// Shape and factor of the adapter of each adapted weight.
    pub shapes: BTreeMap<String, LowRankShape>,
}

impl LowRank {
    /// Names of the matrices `A` and `B` of a weight, as in adapter files.
    pub fn matrices(weight: &str) -> [String; 2] {
        ["a", "b"].map(|side| format!("{weight}.lora_{side}"))
    }
}

/// An adapter whose matrices are weights of a model file.
#[derive(Clone, PartialEq, Debug)]
pub struct AppliedAdapter {
    /// Begin of the names of its matrices in the file.
    pub prefix: String,
    /// Adapted weights, and the factors of their adapters.
    pub low_rank: LowRank,
    /// Number of adapters that share its matrices, if each row of a step chooses among them.
    pub choices: Option<usize>,
}

/// Most adapters that requests may choose from.
pub const MAX_CHOICES: usize = 8;

/// Factors that a sequence gives the adapters of its engine, in their order; 0 leaves one out.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct AdapterScales(pub [f32; MAX_CHOICES]);

impl AdapterScales {
    /// Factors of a sequence that uses the model without adapters.
    pub const BASE: AdapterScales = AdapterScales([0.0; MAX_CHOICES]);
    /// Returns true if no adapter changes anything.
    pub fn is_base(&self) -> bool {
        self.0.iter().all(|&scale| scale == 0.0)
    }
}
