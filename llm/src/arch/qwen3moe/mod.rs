//! `qwen3moe`: Qwen3 with experts in every layer, softmax routing and normalised weights.

use super::Architecture;
use super::attention::Norms;
use super::decoder::Family;
use super::moe::ExpertKind;
use gristmill_tensor::nn::Pairing;

const FAMILY: Family = Family {
    norms: Norms::Heads,
    experts: Some(ExpertKind::SOFTMAX),
    ..Family::plain("qwen3moe", Pairing::Halves)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
