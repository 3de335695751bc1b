//! `bert`: BERT and its descendants (BGE, E5, all-MiniLM). Learned positions, layer norms after
//! attention and feed-forward, GELU.

use super::Architecture;
use super::encoder::{Encoder, FeedForward};

const FAMILY: Encoder = Encoder {
    name: "bert",
    learned_positions: true,
    pre_norms: false,
    feed_forward: FeedForward::Plain,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
