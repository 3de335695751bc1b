//! `glm4moe`: GLM-4.5 and later, including Air. Sigmoid routing and a shared expert after a few
//! dense layers; RoPE on half of every head; the largest models have norms of heads.

use super::Architecture;
use super::attention::Norms;
use super::decoder::Family;
use super::moe::{ExpertKind, Gating};
use gristmill_tensor::nn::Pairing;

const EXPERTS: ExpertKind = ExpertKind {
    gating: Gating::Sigmoid,
    weighting: None,
    needs: &["exp_probs_b.bias"],
    ..ExpertKind::SOFTMAX
};
const FAMILY: Family = Family {
    norms: Norms::HeadsIfThere,
    biases: true,
    experts: Some(EXPERTS),
    ffn_norm: "post_attention_norm.weight",
    ..Family::plain("glm4moe", Pairing::Halves)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
