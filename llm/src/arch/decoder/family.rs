//! What families of decoders differ in.

use super::super::attention::Norms;
use super::super::moe::Kind;
use gristmill_tensor::nn::{Glu, Pairing};

/// What distinguishes a family of decoders.
#[derive(Clone, Copy)]
pub(in super::super) struct Family {
    /// `general.architecture`.
    pub name: &'static str,
    /// Which elements of a head rotate together.
    pub pairing: Pairing,
    /// Norms of queries and keys.
    pub norms: Norms,
    /// Have queries, keys and values biases?
    pub biases: bool,
    /// What experts are, where feed-forwards are experts.
    pub experts: Option<Kind>,
    /// What a dense feed-forward does with gate and up.
    pub glu: Glu,
    /// Has the matrix of `ffn_up` the rows of the gate before its own?
    pub fused_gate: bool,
    /// The norm of what a feed-forward reads.
    pub ffn_norm: &'static str,
    /// Has what attention and feed-forward give norms of its own, `post_attention_norm` and `post_ffw_norm`?
    pub post_norms: bool,
    /// Are rows of the embedding multiplied by the root of their width?
    pub scaled_embedding: bool,
    /// Has attention sinks?
    pub sinks: bool,
    /// What windows are, where layers have them.
    pub windows: Option<Windows>,
}

/// Layers whose tokens see the last `attention.sliding_window` positions alone.
#[derive(Clone, Copy)]
pub(in super::super) struct Windows {
    /// Every so many layers the last sees all positions, unless `attention.sliding_window_pattern` says which do.
    pub period: usize,
    /// Rotations of their own: without scaling, of this base where `rope.freq_base_swa` does not say one. Else they rotate as other layers do, but for
    /// another base if that key says one.
    pub base: Option<f64>,
}

impl Family {
    /// Of a name, with none of the parts that some have.
    pub const fn plain(name: &'static str, pairing: Pairing) -> Family {
        let (norms, experts, glu) = (Norms::No, None, Glu::Swiglu);
        Family {
            name,
            pairing,
            norms,
            biases: false,
            experts,
            glu,
            fused_gate: false,
            ffn_norm: "ffn_norm.weight",
            post_norms: false,
            scaled_embedding: false,
            sinks: false,
            windows: None,
        }
    }
}
