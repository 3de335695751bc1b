//! `nomic-bert`: Nomic Embed. RoPE, layer norms after attention and feed-forward, SwiGLU.

use super::Architecture;
use super::encoder::{Encoder, FeedForward};

const FAMILY: Encoder = Encoder {
    name: "nomic-bert",
    learned_positions: false,
    pre_norms: false,
    feed_forward: FeedForward::Gated,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
