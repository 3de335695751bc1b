//! `olmo2`: OLMo 2 and 3. Post-norms of attention and feed-forward without pre-norms; one norm each
//! over the queries and the keys of all heads. OLMo 3 has sliding windows with unscaled RoPE in
//! three of four layers.

use super::Architecture;
use super::attention::Norms;
use super::decoder::{Family, Windows};
use gristmill_tensor::nn::Pairing;

const FAMILY: Family = Family {
    norms: Norms::Whole,
    pre_norms: false,
    post_norms: true,
    windows: Some(Windows {
        period: 4,
        size: 0,
        scaled: false,
        base: None,
    }),
    ..Family::plain("olmo2", Pairing::Halves)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
