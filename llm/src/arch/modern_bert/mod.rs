//! `modern-bert`: ModernBERT. RoPE, windows to both sides with a RoPE base of their own in two of
//! three layers, layer norms before attention and feed-forward, GeGLU.

use super::Architecture;
use super::encoder::{Encoder, FeedForward};

const FAMILY: Encoder = Encoder {
    name: "modern-bert",
    learned_positions: false,
    pre_norms: true,
    feed_forward: FeedForward::Fused,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
