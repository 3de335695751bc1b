//! `gpt-oss`: alternating sliding windows, attention sinks, and experts with biases and clamped
//! SwiGLU in every layer. Experts are chosen by logits and weighted by a softmax over the chosen
//! ones.

use super::Architecture;
use super::decoder::{Family, Windows};
use super::moe::{ExpertKind, Gating, Weighting};
use gristmill_tensor::nn::{Glu, Pairing};

const EXPERTS: ExpertKind = ExpertKind {
    gating: Gating::Raw,
    weighting: Some(Weighting::Softmax),
    glu: Glu::ClampedSwiglu,
    needs: &[
        "ffn_gate_inp.bias",
        "ffn_gate_exps.bias",
        "ffn_up_exps.bias",
        "ffn_down_exps.bias",
    ],
};

const FAMILY: Family = Family {
    biases: true,
    experts: Some(EXPERTS),
    ffn_norm: "post_attention_norm.weight",
    sinks: true,
    windows: Some(Windows {
        period: 2,
        size: 0,
        scaled: true,
        base: None,
    }),
    ..Family::plain("gpt-oss", Pairing::Halves)
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: FAMILY.name,
    load: |m, t| FAMILY.load(m, t),
    tensors: |m, t| FAMILY.table(m, t),
};
