//! `llama`: Llama 2 and 3, Mistral and derived models. `rope_freqs` holds the frequency divisors of
//! Llama 3.1 and later.

use super::Architecture;
use super::decoder::Family;
use gristmill_tensor::nn::Pairing;

const FAMILY: Family = Family::plain("llama", Pairing::Interleaved);

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
