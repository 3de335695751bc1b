//! Names of a checkpoint's tensors, and what they are called in a GGUF file.

use super::encoders;
use super::named::Named;
use crate::arch::is_encoder_name as is_encoder;
use crate::module_names::modules;

/// Begin of the names of tensors of blocks.
const LAYERS: &str = "model.layers.";
/// Begin of the names of blocks for draft tokens of Qwen3.5.
const DRAFTS: &str = "mtp.";
/// Suffixes of the tensors of a module.
const SUFFIXES: [&str; 2] = [".weight", ".bias"];

/// Parts of names of tensors that are no part of a text model, or follow from others.
const SKIPPED: [&str; 12] = [
    "rotary_emb.inv_freq",
    "visual.",
    "vision.",
    "vision_",
    "audio.",
    "audio_",
    "projector.",
    "patch_merger.",
    "image_newline",
    "talker.",
    "model.connector.",
    ".masked_bias",
];

/// Name of the token ids of an assistant's clusters.
pub(super) const CLUSTERS: &str = "masked_embd_ordering";
/// Tensors outside of blocks.
const GLOBALS: [(&str, &str); 10] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
    (
        "model.embed_tokens_per_layer.weight",
        "per_layer_token_embd.weight",
    ),
    (
        "model.per_layer_model_projection.weight",
        "per_layer_model_proj.weight",
    ),
    (
        "model.per_layer_projection_norm.weight",
        "per_layer_proj_norm.weight",
    ),
    ("pre_projection.weight", "nextn.pre_projection.weight"),
    ("post_projection.weight", "nextn.post_projection.weight"),
    (
        "masked_embedding.centroids.weight",
        "masked_embd_centroids.weight",
    ),
    ("masked_embedding.token_ordering", CLUSTERS),
];

/// Architectures that name the norm before the feed-forward by its place after attention, or have
/// both norms.
const POST_ATTENTION: [&str; 9] = [
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4-assistant",
    "olmo2",
    "glm4moe",
    "gpt-oss",
    "qwen35",
    "qwen35moe",
];

/// Further modules of blocks: those that no adapter changes.
const MODULES: [(&str, &str); 36] = [
    ("input_layernorm", "attn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("router.proj", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("eh_proj", "nextn.eh_proj"),
    ("fc", "nextn.eh_proj"),
    ("enorm", "nextn.enorm"),
    ("pre_fc_norm_embedding", "nextn.enorm"),
    ("hnorm", "nextn.hnorm"),
    ("pre_fc_norm_hidden", "nextn.hnorm"),
    ("shared_head.norm", "nextn.shared_head_norm"),
    ("norm", "nextn.shared_head_norm"),
    ("shared_head.head", "nextn.shared_head_head"),
    ("embed_tokens", "nextn.embed_tokens"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
];

/// Tensors of blocks with names of their own, without the suffix of a module.
const WHOLE: [(&str, &str); 8] = [
    ("self_attn.sinks", "attn_sinks.weight"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.e_score_correction_bias", "exp_probs_b.bias"),
    (
        "block_sparse_moe.e_score_correction_bias",
        "exp_probs_b.bias",
    ),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.A_log", "ssm_a"),
    ("layer_scalar", "layer_output_scale.weight"),
    ("router.scale", "ffn_gate_inp.scale"),
];

/// A scale of each expert's output, with the experts' name in files.
const EXPERT_SCALE: (&str, &str) = ("router.per_expert_scale", "ffn_down_exps.scale");

/// Modules of experts, each a tensor of its own or all in one.
const EXPERTS: [&str; 3] = ["mlp.experts.", "block_sparse_moe.experts.", "experts."];
/// Modules of one expert in both forms, and the stack of all.
const PROJECTIONS: [(&str, &str); 6] = [
    ("gate_proj", "ffn_gate_exps"),
    ("up_proj", "ffn_up_exps"),
    ("down_proj", "ffn_down_exps"),
    ("w1", "ffn_gate_exps"),
    ("w3", "ffn_up_exps"),
    ("w2", "ffn_down_exps"),
];

/// Finds the counterpart of a tensor; `layers` is the number of layers without blocks for drafts.
pub(super) fn find(name: &str, architecture: &str, layers: usize) -> Named {
    if is_encoder(architecture) {
        return encoders::find(name, architecture);
    }
    if SKIPPED.iter().any(|part| name.contains(part)) {
        return Named::Skipped;
    }
    // Models with images have a text model among their parts.
    let name = name.replace("language_model.", "");
    let name = name.as_str();
    if let Some((_, to)) = GLOBALS.iter().find(|row| row.0 == name) {
        return Named::One {
            layer: None,
            name: (*to).into(),
        };
    }
    let numbered = |rest: &str| {
        let (number, rest) = rest.split_once('.')?;
        Some((number.parse::<usize>().ok()?, rest.to_owned()))
    };
    let drafts = name.strip_prefix("model.").unwrap_or(name);
    let of_block = match (name.strip_prefix(LAYERS), drafts.strip_prefix(DRAFTS)) {
        (Some(rest), _) => numbered(rest),
        (_, Some(rest)) => match rest.strip_prefix("layers.").map(numbered) {
            Some(numbered) => numbered.map(|(layer, rest)| (layers + layer, rest)),
            None => Some((layers, rest.to_owned())),
        },
        _ => None,
    };
    let Some((layer, rest)) = of_block else {
        return Named::Unknown;
    };
    if let Some(named) = expert(layer, &rest) {
        return named;
    }
    match of_layer(&rest, architecture) {
        Some(name) => Named::One {
            layer: Some(layer),
            name,
        },
        None => Named::Unknown,
    }
}

/// Finds a tensor of experts.
fn expert(layer: usize, rest: &str) -> Option<Named> {
    let rest = EXPERTS.iter().find_map(|begin| rest.strip_prefix(begin))?;
    let Some((number, module)) = rest.split_once('.') else {
        let name = rest.into();
        return Some(Named::Experts { layer, name });
    };
    let Ok(expert) = number.parse() else {
        let name = rest.strip_suffix(".weight").unwrap_or(rest).into();
        return Some(Named::Experts { layer, name });
    };
    let module = module.strip_suffix(".weight")?;
    let row = PROJECTIONS.iter().find(|row| row.0 == module)?;
    Some(Named::Expert {
        layer,
        expert,
        name: row.1,
    })
}

/// Name of a tensor of a block in a GGUF file.
fn of_layer(rest: &str, architecture: &str) -> Option<String> {
    let whole = WHOLE.iter().chain([&EXPERT_SCALE]);
    if let Some((_, name)) = whole.into_iter().find(|row| row.0 == rest) {
        return Some((*name).into());
    }
    let suffixed = |suffix: &&'static str| Some((rest.strip_suffix(*suffix)?, *suffix));
    let (module, suffix) = SUFFIXES.iter().find_map(suffixed)?;
    let linear = modules(architecture).find(|row| row.module == module);
    let further = || MODULES.iter().find(|row| row.0 == module).map(|row| row.1);
    let tensor = match module {
        "post_attention_layernorm" if POST_ATTENTION.contains(&architecture) => {
            "post_attention_norm"
        }
        "post_attention_layernorm" => "ffn_norm",
        _ => linear.map(|row| row.tensor).or_else(further)?,
    };
    Some(format!("{tensor}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(layer: Option<usize>, name: &str) -> Named {
        Named::One {
            layer,
            name: name.into(),
        }
    }

    #[test]
    fn names_of_checkpoints_are_those_of_files() {
        for (name, architecture, expected) in [
            (
                "model.embed_tokens.weight",
                "llama",
                one(None, "token_embd.weight"),
            ),
            (
                "model.layers.3.self_attn.q_proj.bias",
                "qwen2",
                one(Some(3), "attn_q.bias"),
            ),
            (
                "model.layers.0.post_attention_layernorm.weight",
                "llama",
                one(Some(0), "ffn_norm.weight"),
            ),
            (
                "model.layers.0.post_attention_layernorm.weight",
                "gemma3",
                one(Some(0), "post_attention_norm.weight"),
            ),
            (
                "model.language_model.layers.1.mlp.up_proj.weight",
                "gemma3",
                one(Some(1), "ffn_up.weight"),
            ),
            (
                "model.layers.1.mlp.gate_up_proj.weight",
                "phi3",
                one(Some(1), "ffn_up.weight"),
            ),
            (
                "model.layers.2.block_sparse_moe.e_score_correction_bias",
                "minimax-m2",
                one(Some(2), "exp_probs_b.bias"),
            ),
            (
                "mtp.fc.weight",
                "qwen35",
                one(Some(4), "nextn.eh_proj.weight"),
            ),
            (
                "mtp.layers.0.mlp.up_proj.weight",
                "qwen35",
                one(Some(4), "ffn_up.weight"),
            ),
            (
                "model.layers.1.mlp.experts.7.down_proj.weight",
                "qwen3moe",
                Named::Expert {
                    layer: 1,
                    expert: 7,
                    name: "ffn_down_exps",
                },
            ),
            (
                "model.layers.1.mlp.experts.gate_up_proj_blocks",
                "gpt-oss",
                Named::Experts {
                    layer: 1,
                    name: "gate_up_proj_blocks".into(),
                },
            ),
            (
                "model.visual.blocks.0.norm.weight",
                "qwen35",
                Named::Skipped,
            ),
            ("model.layers.x.mlp.up_proj.weight", "llama", Named::Unknown),
            ("model.layers.0.mlp.odd.weight", "llama", Named::Unknown),
        ] {
            assert_eq!(find(name, architecture, 4), expected, "{name}");
        }
    }
}
