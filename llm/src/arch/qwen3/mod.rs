//! `qwen3`: Qwen3, with RMS norms of query and key heads.

use super::Architecture;
use super::attention::Norms;
use super::decoder::Family;
use gristmill_tensor::nn::Pairing;

const FAMILY: Family = Family {
    norms: Norms::Heads,
    ..Family::plain("qwen3", Pairing::Halves)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
