//! `gemma3`: Gemma 3. Sliding windows with their own RoPE base in five of six layers, pre- and
//! post-norms, GeGLU.

use super::Architecture;
use super::attention::Norms;
use super::decoder::{Family, Windows};
use gristmill_tensor::nn::{Glu, Pairing};

const FAMILY: Family = Family {
    norms: Norms::Heads,
    glu: Glu::Geglu,
    post_norms: true,
    scaled_embedding: true,
    divided_by_rows: Some(62),
    windows: Some(Windows {
        period: 6,
        size: 0,
        scaled: false,
        base: Some(10_000.0),
    }),
    ..Family::plain("gemma3", Pairing::Halves)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
