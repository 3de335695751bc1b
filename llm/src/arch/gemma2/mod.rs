//! `gemma2`: Gemma 2. Alternating sliding windows, soft caps of scores and logits, pre- and
//! post-norms, GeGLU.

use super::Architecture;
use super::decoder::{Family, Windows};
use gristmill_tensor::nn::{Glu, Pairing};

const FAMILY: Family = Family {
    glu: Glu::Geglu,
    post_norms: true,
    scaled_embedding: true,
    divided_by_rows: Some(46),
    score_cap: Some(50.0),
    logit_cap: Some(30.0),
    windows: Some(Windows {
        period: 2,
        size: 4096,
        scaled: true,
        base: None,
    }),
    ..Family::plain("gemma2", Pairing::Halves)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
