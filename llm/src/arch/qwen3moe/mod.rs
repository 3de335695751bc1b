//! `qwen3moe`: Qwen3 with experts in every layer, chosen by softmax, weights normalised.

use super::Architecture;
use super::attention::Norms;
use super::decoder::Family;
use super::moe::Kind;
use gristmill_tensor::nn::Pairing;

const FAMILY: Family =
    Family { norms: Norms::Heads, experts: Some(Kind::SOFTMAX), ..Family::plain("qwen3moe", Pairing::Halves) };

/// This architecture.
pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: FAMILY.name, load: |m, t| FAMILY.load(m, t), tensors: |m, t| FAMILY.table(m, t) };
