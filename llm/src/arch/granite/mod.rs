//! `granite`: dense Granite 3. The layers of `llama` with scale factors of embedding, scores,
//! residual additions and logits.

use super::Architecture;
use super::decoder::Family;
use gristmill_tensor::nn::Pairing;

const FAMILY: Family = Family {
    factors: true,
    ..Family::plain("granite", Pairing::Interleaved)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
