//! `phi3`: Phi-3 and Phi-4-mini. Queries, keys and values come from one matrix, gate and up from another; frequencies are divided by factors for short or
//! for long contexts. Its sliding window is as long as the contexts of its files without it, and is left out as llama.cpp leaves it out.

use super::Architecture;
use super::decoder::Family;
use gristmill_tensor::nn::Pairing;

const FAMILY: Family = Family { fused_gate: true, ..Family::plain("phi3", Pairing::Halves) };

/// This architecture.
pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: FAMILY.name, load: |m, t| FAMILY.load(m, t), tensors: |m, t| FAMILY.table(m, t) };
