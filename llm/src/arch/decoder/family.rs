//! Differences between families of plain decoders.

use super::super::attention::Norms;
use super::super::moe::ExpertKind;
use gristmill_tensor::nn::{Glu, Pairing};

/// Structural options of a family of plain decoders.
#[derive(Clone, Copy)]
pub(in super::super) struct Family {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Which elements of a head form a rotated pair in RoPE.
    pub pairing: Pairing,
    /// RMS norms of queries and keys.
    pub norms: Norms,
    /// Requires biases of queries, keys and values.
    pub biases: bool,
    /// Kind of experts in the layers that are mixtures of experts.
    pub experts: Option<ExpertKind>,
    /// Gated activation of dense feed-forwards.
    pub glu: Glu,
    /// `ffn_up` holds the rows of the gate, then those of the up projection.
    pub fused_gate: bool,
    /// Name of the tensor that normalises the feed-forward's input.
    pub ffn_norm: &'static str,
    /// Normalises the inputs of attention (`attn_norm`) and feed-forward (`ffn_norm`).
    pub pre_norms: bool,
    /// Normalises the outputs: `post_attention_norm` and `post_ffw_norm`.
    pub post_norms: bool,
    /// Multiplies embedding rows by the square root of their width.
    pub scaled_embedding: bool,
    /// Reads scale factors from the file: embedding, attention scores, residual additions, and
    /// a divisor of logits.
    pub factors: bool,
    /// The attention has sinks (`attn_sinks`).
    pub sinks: bool,
    /// Layer count of the one model size whose scores are divided by `sqrt(d / heads)` instead of
    /// `sqrt(key)`. The layer count identifies the size, as in llama.cpp.
    pub divided_by_rows: Option<usize>,
    /// Default soft cap of attention scores; `None` if the family has no soft cap.
    pub score_cap: Option<f64>,
    /// Default soft cap of logits; `None` if the family has none.
    pub logit_cap: Option<f64>,
    /// Sliding windows of the family, if any layer has one.
    pub windows: Option<Windows>,
}

/// Sliding windows of a family; window length from `attention.sliding_window`.
#[derive(Clone, Copy)]
pub(in super::super) struct Windows {
    /// The last layer of every `period` attends to all positions, the others to the window. The key
    /// `attention.sliding_window_pattern` overrides this.
    pub period: usize,
    /// Default window length in positions, used without `attention.sliding_window`;
    /// 0 means no window.
    pub size: u32,
    /// Applies the file's RoPE scaling to windowed layers too.
    pub scaled: bool,
    /// Default RoPE base of windowed layers, used without `rope.freq_base_swa`; `None` means the
    /// base of the other layers.
    pub base: Option<f64>,
}

impl Family {
    /// Creates a family without any optional part.
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
