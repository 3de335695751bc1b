//! `granite`: the dense Granite 3. Llama's layers with factors on the embedding, on scores, on what is added to rows and on logits.

use super::Architecture;
use super::decoder::Family;
use gristmill_tensor::nn::Pairing;

const FAMILY: Family = Family { factors: true, ..Family::plain("granite", Pairing::Interleaved) };

/// This architecture.
pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: FAMILY.name, load: |m, t| FAMILY.load(m, t), tensors: |m, t| FAMILY.table(m, t) };
