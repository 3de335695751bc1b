//! `minimax-m2`: MiniMax-M2. Sigmoid routing in every layer, RoPE on half of every head, and one
//! norm each over the queries and the keys of all heads.

use super::Architecture;
use super::attention::Norms;
use super::decoder::Family;
use super::moe::{ExpertKind, Gating};
use gristmill_tensor::nn::Pairing;

const EXPERTS: ExpertKind = ExpertKind {
    gating: Gating::Sigmoid,
    needs: &["exp_probs_b.bias"],
    ..ExpertKind::SOFTMAX
};
const FAMILY: Family = Family {
    norms: Norms::Whole,
    experts: Some(EXPERTS),
    ..Family::plain("minimax-m2", Pairing::Halves)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
