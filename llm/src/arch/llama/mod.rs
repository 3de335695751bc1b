//! `llama`: Llama 2 and 3, Mistral, and many that were made like them. Frequencies of Llama 3.1 and later are divided by `rope_freqs`.

use super::Architecture;
use super::decoder::Family;
use gristmill_tensor::nn::Pairing;

const FAMILY: Family = Family::plain("llama", Pairing::Interleaved);

/// This architecture.
pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: FAMILY.name, load: |m, t| FAMILY.load(m, t), tensors: |m, t| FAMILY.table(m, t) };
