//! `olmo2`: OLMo 2 and 3. Norms of what attention and feed-forward give and none of what they read, and of the queries and the keys of all heads together;
//! of OLMo 3 three of four layers see a window, without scaling of rotations.

use super::Architecture;
use super::attention::Norms;
use super::decoder::{Family, Windows};
use gristmill_tensor::nn::Pairing;

const FAMILY: Family = Family {
    norms: Norms::Whole,
    pre_norms: false,
    post_norms: true,
    windows: Some(Windows { period: 4, size: 0, scaled: false, base: None }),
    ..Family::plain("olmo2", Pairing::Halves)
};

/// This architecture.
pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: FAMILY.name, load: |m, t| FAMILY.load(m, t), tensors: |m, t| FAMILY.table(m, t) };
