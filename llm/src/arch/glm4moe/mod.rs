//! `glm4moe`: GLM-4.5 and after, and their Air. Experts by sigmoid with a shared one behind a few dense layers, half of every head rotates, and the largest
//! have norms of heads. The block for draft tokens is left out.

use super::Architecture;
use super::attention::Norms;
use super::decoder::Family;
use super::moe::{Gating, Kind};
use gristmill_tensor::nn::Pairing;

const EXPERTS: Kind = Kind { gating: Gating::Sigmoid, weighting: None, needs: &["exp_probs_b.bias"], ..Kind::SOFTMAX };
const FAMILY: Family = Family {
    norms: Norms::HeadsIfThere,
    biases: true,
    experts: Some(EXPERTS),
    ffn_norm: "post_attention_norm.weight",
    ..Family::plain("glm4moe", Pairing::Halves)
};

/// This architecture.
pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: FAMILY.name, load: |m, t| FAMILY.load(m, t), tensors: |m, t| FAMILY.table(m, t) };
