//! Steps of training: forward pass, loss, and the backward pass of each call.
//!
//! The forward pass keeps the hidden rows before every layer and nothing else. The backward pass of
//! a call is one function: it computes the call again from its hidden rows and, from the gradient
//! of its result, the gradients of the hidden rows and of its parameters.

use super::cache::CacheType;
use super::low_rank::LowRank;
use super::plan::{Bind, BoundCall, ExpertTile, Logits, Options, StepKind};
use super::pools::Pools;
use gristmill_uop::dtype::Scalar;
use std::collections::BTreeMap;

/// Parameters that a step of training changes.
#[derive(Clone, PartialEq, Debug)]
pub enum Trained {
    /// Low-rank adapters of frozen weights.
    LowRank(LowRank),
    /// All tensors of the model, as f32 parameters.
    Full,
    /// The tensors of the block for draft tokens, which is this layer, as f32 parameters.
    DraftBlock(usize),
    /// Nothing: a forward pass adds up the squares of the inputs of products.
    Nothing,
}

/// Sizes of a step of training.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrainingShape {
    /// Number of sequences of a step.
    pub sequences: usize,
    /// Tokens of each sequence.
    pub length: usize,
    /// Rows hold several examples: see [`StepKind::Train`].
    pub packed: bool,
    /// Rows whose logits are computed at a time; a divisor of the step's tokens.
    pub loss_rows: usize,
}

/// How the products of a step of training are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrainingProducts {
    /// Type that their factors are rounded to: bf16 on machines with matrix units, f32 for none.
    pub operands: Scalar,
    /// Tile sizes of experts.
    pub tile: ExpertTile,
}

impl TrainingShape {
    /// Number of tokens of a step.
    pub fn tokens(&self) -> usize {
        self.sequences * self.length
    }
    /// Options of the functions of a step; those of the loss have `loss_rows` tokens.
    pub fn options(&self, [sequences, length]: [usize; 2], tile: ExpertTile) -> Options {
        Options {
            tokens: StepKind::Train {
                sequences,
                length,
                packed: self.packed,
            },
            rows: self.length,
            pools: Pools {
                pages: 1,
                windows: None,
                states: 0,
            },
            contiguous: true,
            depth: self.length,
            cache: CacheType::F32,
            logits: Logits::All,
            tile,
            cached: None,
            draft: None,
        }
    }
}

/// Calls of a step of training.
#[derive(Clone, Debug)]
pub struct TrainingPlan {
    /// Embedding and layers, in order.
    pub forward: Vec<BoundCall>,
    /// Head, loss, and their backward pass, for `loss_rows` rows: runs once for each chunk of rows.
    pub loss: BoundCall,
    /// Head and loss of such rows, without gradients.
    pub evaluation: BoundCall,
    /// Backward passes of layers and embedding, in order of execution.
    pub backward: Vec<BoundCall>,
}

impl TrainingPlan {
    /// All calls, those of the loss once.
    pub fn calls(&self) -> impl Iterator<Item = &BoundCall> {
        self.forward
            .iter()
            .chain([&self.loss, &self.evaluation])
            .chain(&self.backward)
    }
    /// Names and dims of the parameters, sorted by name.
    pub fn parameters(&self) -> BTreeMap<String, Vec<usize>> {
        let mut found = BTreeMap::new();
        for call in self.calls() {
            for (bind, slot) in call.binds.iter().zip(&call.function.slots) {
                if let Bind::Parameter(name) = bind {
                    let dims = slot.dims.iter().map(|&d| d as usize).collect();
                    found.insert(name.clone(), dims);
                }
            }
        }
        found
    }
}
