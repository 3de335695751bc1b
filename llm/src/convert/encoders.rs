//! Text encoders: names of their tensors, hyper-parameters, and kind of pooling.

use super::config::CheckpointConfig;
use super::error::ConvertError;
use super::folder::CheckpointFolder;
use super::hyper::Keys;
use super::named::Named;
use crate::gguf::Metadata;
use crate::pooling::PoolingKind;
use serde_json::Value as Json;

type Result<T = ()> = std::result::Result<T, ConvertError>;

/// Begins of names, which classes with a task or the original code of a family add.
const PREFIXES: [&str; 4] = ["bert.", "model.", "nomic_bert.", "encoder."];
/// Begins of the names of blocks.
const LAYERS: [&str; 2] = ["layer.", "layers."];
/// Begins of the names of heads of tasks.
const SKIPPED: [&str; 5] = ["pooler.", "cls.", "head.", "decoder.", "lm_head."];
/// Suffixes of the tensors of a module; the last two are those of old layer norms.
const SUFFIXES: [(&str, &str); 4] = [
    (".weight", ".weight"),
    (".bias", ".bias"),
    (".gamma", ".weight"),
    (".beta", ".bias"),
];

/// Modules outside of blocks.
const GLOBALS: [(&str, &str); 8] = [
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.tok_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("emb_ln", "token_embd_norm"),
    ("embeddings.norm", "token_embd_norm"),
    ("final_norm", "output_norm"),
];

/// Modules of blocks of all families, by their names in transformers and in original code.
const MODULES: [(&str, &str); 27] = [
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "attn_output_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("post_mlp_layernorm", "layer_output_norm"),
    ("attn.Wqkv", "attn_qkv"),
    ("attn.out_proj", "attn_output"),
    ("attn.Wo", "attn_output"),
    ("attn_norm", "attn_norm"),
    ("norm1", "attn_output_norm"),
    ("norm2", "layer_output_norm"),
    ("mlp.fc11", "ffn_up"),
    ("mlp.fc12", "ffn_gate"),
    ("mlp_norm", "ffn_norm"),
    ("mlp.Wi", "ffn_up"),
];

/// Finds the counterpart of a tensor of an encoder.
pub(super) fn find(name: &str, architecture: &str) -> Named {
    let mut name = name;
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        name = rest;
    }
    if SKIPPED.iter().any(|begin| name.starts_with(begin)) || name.ends_with("position_ids") {
        return Named::Skipped;
    }
    let suffixed = |(from, to): &(&str, &'static str)| Some((name.strip_suffix(from)?, *to));
    let Some((module, suffix)) = SUFFIXES.iter().find_map(suffixed) else {
        return Named::Unknown;
    };
    let row = |rows: &[(&str, &str)], module: &str| {
        let row = rows.iter().find(|row| row.0 == module)?;
        Some(format!("{}{suffix}", row.1))
    };
    if let Some(name) = row(&GLOBALS, module) {
        return Named::One { layer: None, name };
    }
    let block = LAYERS.iter().find_map(|begin| module.strip_prefix(begin));
    let numbered = block.and_then(|rest| {
        let (number, module) = rest.split_once('.')?;
        let down = match (architecture, module) {
            ("modern-bert", "mlp.Wo") | ("nomic-bert", "mlp.fc2") => "ffn_down",
            _ => "",
        };
        let name = match down {
            "" => row(&MODULES, module)?,
            down => format!("{down}{suffix}"),
        };
        Some((number.parse().ok()?, name))
    });
    match numbered {
        Some((layer, name)) => Named::One {
            layer: Some(layer),
            name,
        },
        None => Named::Unknown,
    }
}

/// Writes the keys of all encoders.
fn common(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    keys.set("attention.causal", false);
    let names = ["layer_norm_eps", "layer_norm_epsilon", "norm_eps"];
    keys.number("attention.layer_norm_epsilon", config, &names)
}

/// Refuses a setting that is neither absent nor as in published models.
fn check_text(config: &CheckpointConfig, name: &str, usual: &str) -> Result {
    match config.text(&[name])? {
        Some(other) if other != usual => Err(ConvertError::unsupported(
            format!("{name} {other}"),
            format!("{usual} is"),
        )),
        _ => Ok(()),
    }
}

fn check_flag(config: &CheckpointConfig, name: &str) -> Result {
    match config.flag(name)? {
        true => Err(ConvertError::unsupported(
            format!("{name} true"),
            "the published models have false",
        )),
        false => Ok(()),
    }
}

/// Writes the keys of BERT, which has one activation and learned positions.
pub(super) fn bert(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    check_text(config, "hidden_act", "gelu")?;
    check_text(config, "position_embedding_type", "absolute")?;
    common(config, keys)
}

/// Writes the keys of Nomic Embed, as transformers or as its original code saves it.
pub(super) fn nomic_bert(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    check_text(config, "activation_function", "swiglu")?;
    check_text(config, "hidden_act", "silu")?;
    for name in ["prenorm", "rotary_emb_interleaved"] {
        check_flag(config, name)?;
    }
    if config.count(&["moe_every_n_layers"])?.unwrap_or(0) > 0 {
        let hint = "models without experts are";
        return Err(ConvertError::unsupported("moe_every_n_layers", hint));
    }
    let positions = config.count(&["n_positions"])?;
    let trained = config.count(&["max_trained_positions"])?;
    // Beyond these positions RoPE would be scaled.
    if let Some(context) = positions.into_iter().chain(trained).min() {
        keys.set("context_length", context);
    }
    keys.count(
        "feed_forward_length",
        config,
        &["n_inner", "intermediate_size"],
    )?;
    common(config, keys)
}

/// Writes the keys of ModernBERT: windows of its blocks, and the unit of its feed-forward.
pub(super) fn modern_bert(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    check_flag(config, "norm_bias")?;
    keys.count("attention.sliding_window", config, &["local_attention"])?;
    let name = "attention.sliding_window_pattern";
    match config.windows()? {
        Some(windows) => keys.bools(name, windows),
        None => keys.count(name, config, &["global_attn_every_n_layers"])?,
    }
    match config.text(&["hidden_activation"])? {
        None | Some("gelu") => {}
        Some(other) => keys.set("hidden_activation", other),
    }
    common(config, keys)
}

/// Writes the kind of pooling that `modules.json` of sentence-transformers names.
pub(super) fn pooling(
    folder: &CheckpointFolder,
    architecture: &str,
    metadata: &mut Metadata,
) -> Result {
    const FILE: &str = "modules.json";
    let Some(text) = folder.text(FILE)? else {
        return Ok(());
    };
    let modules: Json =
        serde_json::from_str(&text).map_err(|error| ConvertError::malformed(FILE, error))?;
    let modules = modules.as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |module: &Json, field: &str| module.get(field)?.as_str().map(str::to_owned);
    let is_pooling = |module: &&Json| {
        let kind = text(module, "type");
        kind.is_some_and(|kind| kind.ends_with("Pooling"))
    };
    let Some(path) = modules
        .iter()
        .find(is_pooling)
        .and_then(|m| text(m, "path"))
    else {
        return Ok(());
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !path.chars().all(is_plain) {
        let problem = format!("the path of the pooling is {path:?}");
        return Err(ConvertError::malformed(FILE, problem));
    }
    let settings = folder.object(&format!("{path}/config.json"))?;
    let settings = settings.unwrap_or_default();
    let has = |name: &str| settings.get(name).and_then(Json::as_bool) == Some(true);
    let kind = match settings.get("pooling_mode").and_then(Json::as_str) {
        _ if has("pooling_mode_mean_tokens") => PoolingKind::Mean,
        _ if has("pooling_mode_cls_token") => PoolingKind::Cls,
        _ if has("pooling_mode_lasttoken") => PoolingKind::Last,
        Some("mean") => PoolingKind::Mean,
        Some("cls") => PoolingKind::Cls,
        Some("lasttoken") => PoolingKind::Last,
        _ => {
            let hint = "mean, cls and lasttoken are";
            return Err(ConvertError::unsupported("that kind of pooling", hint));
        }
    };
    let number = PoolingKind::ALL.iter().position(|&of| of == kind);
    let number = number.unwrap_or_default() as u32;
    metadata.insert(format!("{architecture}.pooling_type"), number);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_encoders_are_those_of_files() {
        let one = |layer, name: &str| Named::One {
            layer,
            name: name.into(),
        };
        for (name, architecture, expected) in [
            (
                "bert.encoder.layer.3.attention.output.LayerNorm.gamma",
                "bert",
                one(Some(3), "attn_output_norm.weight"),
            ),
            (
                "embeddings.token_type_embeddings.weight",
                "bert",
                one(None, "token_types.weight"),
            ),
            ("embeddings.position_ids", "bert", Named::Skipped),
            ("cls.predictions.bias", "bert", Named::Skipped),
            (
                "encoder.layers.1.mlp.fc2.weight",
                "nomic-bert",
                one(Some(1), "ffn_down.weight"),
            ),
            (
                "model.layers.2.mlp.Wo.weight",
                "modern-bert",
                one(Some(2), "ffn_down.weight"),
            ),
            ("layers.x.mlp.Wi.weight", "modern-bert", Named::Unknown),
            ("layers.1.odd.weight", "modern-bert", Named::Unknown),
        ] {
            assert_eq!(find(name, architecture), expected, "{name}");
        }
    }
}
