//! Parts of a model that file types tell apart, by the names of tensors.

/// Part of a model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Part {
    /// The output head, or an embedding that is the output too.
    Output,
    Embedding,
    Q,
    K,
    /// Value projections, alone or with others.
    V,
    AttentionOutput,
    Gate,
    Up,
    Down,
    Other,
}

/// Names of the output head and of embeddings.
pub(super) const OUTPUT: &str = "output.weight";
pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const LAYER_EMBEDDING: &str = "per_layer_token_embd.weight";

/// Parts by what a name contains; the first row decides.
const CONTAINED: &[(&str, Part)] = &[
    ("attn_qkv.weight", Part::V),
    ("attn_kv_b.weight", Part::V),
    ("attn_v.weight", Part::V),
    ("attn_k.weight", Part::K),
    ("attn_q.weight", Part::Q),
    ("attn_output.weight", Part::AttentionOutput),
    ("ffn_up", Part::Up),
    ("ffn_gate", Part::Gate),
    ("ffn_down", Part::Down),
];

/// What the names of matrices contain that are never quantised: small ones, and those on which much
/// depends.
const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "position_embd",
    "token_types",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".patch_embd",
    ".patch_merger",
    ".rel_pos",
];

impl Part {
    /// Part of a tensor; `is_tied` if the model has no output head of its own.
    pub fn new(name: &str, is_tied: bool) -> Part {
        match name {
            OUTPUT => Part::Output,
            EMBEDDING | LAYER_EMBEDDING if is_tied => Part::Output,
            EMBEDDING | LAYER_EMBEDDING => Part::Embedding,
            _ => {
                let row = CONTAINED.iter().find(|row| name.contains(row.0));
                row.map_or(Part::Other, |row| row.1)
            }
        }
    }
}

/// Whether a tensor of that name and number of sizes other than 1 may be quantised.
pub(super) fn is_quantised(name: &str, rank: usize) -> bool {
    rank >= 2 && name.ends_with("weight") && !KEPT.iter().any(|kept| name.contains(kept))
}

/// Layer of a tensor, if it belongs to one.
pub(super) fn layer(name: &str) -> Option<usize> {
    let rest = name.strip_prefix("blk.")?;
    rest.split('.').next()?.parse().ok()
}
