//! `llama`: Llama 2 and 3, Mistral, Mixtral and derived models. `rope_freqs` holds the frequency
//! divisors of Llama 3.1 and later.

use super::decoder::Family;
use super::moe::{ExpertKind, Weighting};
use super::{Architecture, Result};
use crate::gguf::Metadata;
use gristmill_tensor::nn::Pairing;

const DENSE: Family = Family::plain("llama", Pairing::Interleaved);
const MIXTURE: Family = Family {
    experts: Some(ExpertKind {
        weighting: Some(Weighting::Normalised),
        ..ExpertKind::SOFTMAX
    }),
    ..DENSE
};

fn family(metadata: &Metadata) -> Result<&'static Family> {
    let experts = metadata.u32("llama.expert_count")?;
    Ok(match experts.is_some_and(|count| count > 0) {
        true => &MIXTURE,
        false => &DENSE,
    })
}

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: DENSE.name,
    load: |m, t| family(m)?.load(m, t),
    tensors: |m, t| family(m)?.table(m, t),
};
