//! Differences between families of text encoders.

/// Values of `general.architecture` of all families.
pub(in super::super) const NAMES: [&str; 3] = ["bert", "modern-bert", "nomic-bert"];

/// Row of each kind of token; all tokens are of the first.
pub(super) const TYPES: &str = "token_types.weight";

/// Structural options of a family of encoders.
#[derive(Clone, Copy)]
pub(in super::super) struct Encoder {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Adds a learned row of its position to each token; otherwise RoPE rotates queries and keys.
    pub learned_positions: bool,
    /// Normalises the inputs of attention and feed-forward, and the rows after the last block;
    /// otherwise the sums after them.
    pub pre_norms: bool,
    pub feed_forward: FeedForward,
}

/// Feed-forward of a family of encoders.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum FeedForward {
    /// Up projection, GELU and down projection.
    Plain,
    /// SwiGLU with a gate of its own.
    Gated,
    /// A gated unit, GeGLU unless the file names another; `ffn_up` holds gate and up projection.
    Fused,
}
