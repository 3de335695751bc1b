//! `phi3`: Phi-3 and Phi-4-mini. Fused QKV and fused gate-up matrices; RoPE frequency divisors for
//! short or long contexts. The sliding window is ignored, as in llama.cpp.

use super::Architecture;
use super::decoder::Family;
use gristmill_tensor::nn::Pairing;

const FAMILY: Family = Family {
    fused_gate: true,
    ..Family::plain("phi3", Pairing::Halves)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
