//! `minimax-m2`: MiniMax-M2. Experts by sigmoid in every layer, half of every head rotates, and one norm goes over the queries of all heads, one over the keys.

use super::Architecture;
use super::attention::Norms;
use super::decoder::Family;
use super::moe::{Gating, Kind};
use gristmill_tensor::nn::Pairing;

const EXPERTS: Kind = Kind { gating: Gating::Sigmoid, needs: &["exp_probs_b.bias"], ..Kind::SOFTMAX };
const FAMILY: Family =
    Family { norms: Norms::Whole, experts: Some(EXPERTS), ..Family::plain("minimax-m2", Pairing::Halves) };

/// This architecture.
pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: FAMILY.name, load: |m, t| FAMILY.load(m, t), tensors: |m, t| FAMILY.table(m, t) };
