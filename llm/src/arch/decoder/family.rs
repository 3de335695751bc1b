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
    /// Has what attention and feed-forward read norms, `attn_norm` and that of `ffn_norm`?
    pub pre_norms: bool,
    /// Has what attention and feed-forward give norms of its own, `post_attention_norm` and `post_ffw_norm`?
    pub post_norms: bool,
    /// Are rows of the embedding multiplied by the root of their width?
    pub scaled_embedding: bool,
    /// Does the file say factors: on rows of the embedding, on scores, on what is added to rows, and what logits are divided by?
    pub factors: bool,
    /// Has attention sinks?
    pub sinks: bool,
    /// Of a model of so many layers, which is known by them, scores are divided by the root of a row's width for each head, not of a key's.
    pub divided_by_rows: Option<usize>,
    /// The soft cap of scores where the file does not say one, if scores have one at all.
    pub score_cap: Option<f64>,
    /// The soft cap of logits where the file does not say one, if there is one.
    pub logit_cap: Option<f64>,
    /// What windows are, where layers have them.
    pub windows: Option<Windows>,
}

/// Layers whose tokens see the last `attention.sliding_window` positions alone.
#[derive(Clone, Copy)]
pub(in super::super) struct Windows {
    /// Every so many layers the last sees all positions, unless `attention.sliding_window_pattern` says which do.
    pub period: usize,
    /// Positions that these see where `attention.sliding_window` does not say it; 0: all.
    pub size: u32,
    /// Are their rotations scaled as those of other layers are?
    pub scaled: bool,
    /// The base of their rotations where `rope.freq_base_swa` does not say one, if it is not that of other layers.
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
            pre_norms: true,
            post_norms: false,
            scaled_embedding: false,
            factors: false,
            sinks: false,
            divided_by_rows: None,
            score_cap: None,
            logit_cap: None,
            windows: None,
        }
    }
}
