//! `qwen3`: Qwen3, with a norm of every head's queries and keys.

use super::Architecture;
use super::attention::Norms;
use super::decoder::Family;
use gristmill_tensor::nn::Pairing;

const FAMILY: Family = Family { norms: Norms::Heads, ..Family::plain("qwen3", Pairing::Halves) };

/// This architecture.
pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: FAMILY.name, load: |m, t| FAMILY.load(m, t), tensors: |m, t| FAMILY.table(m, t) };
