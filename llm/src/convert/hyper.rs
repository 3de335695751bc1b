//! Hyper-parameters as metadata keys: those of all families, and those of each.

use super::config::{CheckpointConfig, FULL, Fields};
use super::error::ConvertError;
use crate::gguf::{Array, Metadata, Value};

/// Functions of a router's scores, as values of `expert_gating_func`.
const SOFTMAX: u32 = 1;
const SIGMOID: u32 = 2;

type Result<T = ()> = std::result::Result<T, ConvertError>;

/// Metadata keys of an architecture.
pub(super) struct Keys<'m> {
    pub metadata: &'m mut Metadata,
    pub architecture: &'static str,
    /// Settings that the converted model does not have, as warnings.
    pub warnings: Vec<String>,
    /// Frequency divisors of RoPE and other tensors that follow from the configuration.
    pub tensors: Vec<(&'static str, Vec<f32>)>,
}

impl Keys<'_> {
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        let key = format!("{}.{name}", self.architecture);
        self.metadata.insert(key, value);
    }
    pub fn count(&mut self, name: &str, of: &Fields, names: &[&str]) -> Result {
        if let Some(count) = of.count(names)? {
            self.set(name, count);
        }
        Ok(())
    }
    pub fn number(&mut self, name: &str, of: &Fields, names: &[&str]) -> Result {
        if let Some(number) = of.number(names)? {
            self.set(name, number as f32);
        }
        Ok(())
    }
    fn has(&self, name: &str) -> bool {
        let key = format!("{}.{name}", self.architecture);
        self.metadata.contains(&key)
    }
    pub fn bools(&mut self, name: &str, bools: Vec<bool>) {
        self.set(name, Value::Array(Array::Bool(bools)));
    }
    /// Writes which layers have windows, unless it is the last of every `period` that has none.
    fn windows(&mut self, config: &CheckpointConfig, period: usize) -> Result {
        let Some(windows) = config.windows()? else {
            return Ok(());
        };
        let is_usual = windows
            .iter()
            .enumerate()
            .all(|(layer, &within)| within == ((layer + 1) % period != 0));
        if !is_usual {
            self.bools("attention.sliding_window_pattern", windows);
        }
        Ok(())
    }
    fn ignored(&mut self, what: impl Into<String>) {
        self.warnings.push(what.into());
    }
}

/// Names of the widths of dense feed-forwards.
const FEED_FORWARD: [&str; 3] = [
    "prefix_dense_intermediate_size",
    "dense_intermediate_size",
    "intermediate_size",
];

/// Counts that all families have under the same key.
const COUNTS: &[(&str, &[&str])] = &[
    (
        "context_length",
        &["max_position_embeddings", "n_ctx", "max_sequence_length"],
    ),
    ("embedding_length", &["hidden_size", "n_embd", "dim"]),
    ("feed_forward_length", &FEED_FORWARD),
    (
        "attention.head_count",
        &["num_attention_heads", "n_head", "n_heads"],
    ),
    (
        "attention.head_count_kv",
        &["num_key_value_heads", "n_kv_heads"],
    ),
    (
        "expert_count",
        &["num_local_experts", "num_experts", "n_routed_experts"],
    ),
    (
        "expert_used_count",
        &[
            "num_experts_per_tok",
            "num_experts_per_token",
            "top_k_experts",
        ],
    ),
    ("expert_group_count", &["n_group"]),
    ("expert_group_used_count", &["topk_group"]),
    ("attention.key_length", &["head_dim"]),
    ("attention.value_length", &["head_dim"]),
];

/// Writes the keys that all families have.
pub(super) fn common(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    keys.set("block_count", config.layers()?);
    for (key, names) in COUNTS {
        keys.count(key, config, names)?;
    }
    keys.number(
        "attention.layer_norm_rms_epsilon",
        config,
        &["rms_norm_eps", "norm_eps"],
    )?;
    let names = ["score_function", "scoring_func", "score_func"];
    match config.text(&names)? {
        None => {}
        Some("sigmoid") => keys.set("expert_gating_func", SIGMOID),
        Some("softmax") => keys.set("expert_gating_func", SOFTMAX),
        Some(other) => {
            let what = format!("the routing function {other}");
            return Err(ConvertError::unsupported(what, "sigmoid and softmax are"));
        }
    }
    activation(config)?;
    rope(config, keys)
}

/// Refuses feed-forwards with another activation than those of the families.
fn activation(config: &CheckpointConfig) -> Result {
    let known = ["silu", "swish", "gelu_pytorch_tanh", "gelu_tanh"];
    match config.text(&["hidden_activation", "hidden_act"])? {
        None => Ok(()),
        Some(name) if known.contains(&name) => Ok(()),
        // Gemma 2 and 3 name one activation and use the other.
        Some("gelu") if config.class.starts_with("Gemma") || config.class.contains("Bert") => {
            Ok(())
        }
        Some(other) => Err(ConvertError::unsupported(
            format!("hidden_act {other}"),
            format!("supported activations: {}", known.join(", ")),
        )),
    }
}

/// Writes base and scaling of RoPE.
fn rope(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    let rope = &config.rope;
    keys.number("rope.freq_base", rope, &["rope_theta"])?;
    keys.number("rope.freq_base_swa", &config.window_rope, &["rope_theta"])?;
    let original = ["original_max_position_embeddings"];
    match rope.text(&["rope_type"])? {
        None | Some("default") => Ok(()),
        Some("linear") => {
            keys.set("rope.scaling.type", "linear");
            keys.number("rope.scaling.factor", rope, &["factor"])
        }
        Some("yarn") => {
            keys.set("rope.scaling.type", "yarn");
            keys.number("rope.scaling.factor", rope, &["factor"])?;
            keys.count("rope.scaling.original_context_length", rope, &original)?;
            keys.number(
                "rope.scaling.yarn_ext_factor",
                rope,
                &["extrapolation_factor"],
            )?;
            let names = ["attention_factor", "attn_factor"];
            keys.number("rope.scaling.yarn_attn_factor", rope, &names)?;
            keys.number("rope.scaling.yarn_beta_fast", rope, &["beta_fast"])?;
            keys.number("rope.scaling.yarn_beta_slow", rope, &["beta_slow"])
        }
        Some("llama3") if matches!(keys.architecture, "llama" | "granite" | "mistral3") => {
            let divisors = llama3_divisors(config)?;
            keys.tensors.push(("rope_freqs.weight", divisors));
            Ok(())
        }
        Some("longrope" | "su") if keys.architecture == "phi3" => Ok(()),
        Some("proportional") if keys.architecture.starts_with("gemma4") => Ok(()),
        Some(other) => Err(ConvertError::unsupported(
            format!("RoPE of type {other} of a {} model", keys.architecture),
            "convert a model whose rope_scaling is linear, yarn, or that of its family",
        )),
    }
}

/// Divisors of RoPE frequencies: 1 for short wavelengths, the factor for long ones, and a blend
/// between (Llama 3.1).
fn llama3_divisors(config: &CheckpointConfig) -> Result<Vec<f32>> {
    let rope = &config.rope;
    let number = |name, usual| rope.number(&[name]).map(|v| v.unwrap_or(usual));
    let base = number("rope_theta", 10_000.0)?;
    let factor = number("factor", 8.0)?;
    let (low, high) = (
        number("low_freq_factor", 1.0)?,
        number("high_freq_factor", 4.0)?,
    );
    let original = number("original_max_position_embeddings", 8192.0)?;
    let dims = config.head()?;
    if dims > MAX_HEAD {
        let what = format!("a head of {dims} elements");
        return Err(ConvertError::unsupported(
            what,
            format!("at most {MAX_HEAD} are"),
        ));
    }
    let divisor = |pair: u32| {
        // In f32, as transformers computes them.
        let frequency = 1.0 / (base as f32).powf(2.0 * pair as f32 / dims as f32);
        let wavelength = 2.0 * std::f64::consts::PI / f64::from(frequency);
        let blend = (original / wavelength - low) / (high - low);
        let divisor = match wavelength {
            w if w < original / high => 1.0,
            w if w > original / low => factor,
            _ => 1.0 / ((1.0 - blend) / factor + blend),
        };
        divisor as f32
    };
    Ok((0..dims / 2).map(divisor).collect())
}

/// Longest head; those of published models have up to 512 elements.
const MAX_HEAD: u32 = 1 << 16;

/// Families without further keys.
pub(super) fn plain(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    if config.flag("use_sliding_window")? {
        keys.ignored("use_sliding_window is ignored: all layers attend to the whole context");
    }
    Ok(())
}

pub(super) fn llama(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    let window = config.count(&["sliding_window"])?;
    let context = config.count(&["max_position_embeddings"])?;
    if window.is_some_and(|window| Some(window) < context) {
        keys.ignored("sliding_window is ignored: all layers attend to the whole context");
    }
    keys.count("vocab_size", config, &["vocab_size"])?;
    keys.set("rope.dimension_count", config.head()?);
    Ok(())
}

pub(super) fn mistral3(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    llama(config, keys)?;
    let rope = &config.rope;
    keys.number(
        "rope.scaling.yarn_log_multiplier",
        rope,
        &["mscale_all_dim"],
    )?;
    keys.number(
        "attention.temperature_scale",
        rope,
        &["llama_4_scaling_beta"],
    )
}

pub(super) fn granite(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    llama(config, keys)?;
    for (key, name) in [
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        keys.number(key, config, &[name])?;
    }
    Ok(())
}

pub(super) fn qwen3moe(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    plain(config, keys)?;
    let dense = config.get(&["mlp_only_layers"]);
    let has_dense = dense.is_some_and(|(_, list)| list.as_array().is_some_and(|l| !l.is_empty()));
    let step = config.count(&["decoder_sparse_step"])?;
    if has_dense || step.is_some_and(|step| step != 1) {
        let what = "a Qwen3 MoE model with dense layers (mlp_only_layers, decoder_sparse_step)";
        return Err(ConvertError::unsupported(what, "those without them are"));
    }
    if config.get(&["norm_topk_prob"]).is_some() && !config.flag("norm_topk_prob")? {
        let what = "norm_topk_prob false of a Qwen3 MoE model";
        return Err(ConvertError::unsupported(what, "set it to true"));
    }
    keys.count(
        "expert_feed_forward_length",
        config,
        &["moe_intermediate_size"],
    )
}

pub(super) fn qwen35(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    keys.count(
        "expert_feed_forward_length",
        config,
        &["moe_intermediate_size"],
    )?;
    let shared = ["shared_expert_intermediate_size"];
    keys.count("expert_shared_feed_forward_length", config, &shared)?;
    let heads = config.need(&["linear_num_value_heads"])?;
    let width = config.need(&["linear_value_head_dim"])?;
    keys.set("ssm.conv_kernel", config.need(&["linear_conv_kernel_dim"])?);
    keys.set("ssm.state_size", config.need(&["linear_key_head_dim"])?);
    keys.set("ssm.group_count", config.need(&["linear_num_key_heads"])?);
    keys.set("ssm.time_step_rank", heads);
    let inner = heads.checked_mul(width);
    let inner = inner.ok_or_else(|| ConvertError::malformed("config.json", "heads overflow"))?;
    keys.set("ssm.inner_size", inner);
    let interval = config.count(&["full_attention_interval"])?.unwrap_or(4);
    keys.set("full_attention_interval", interval);
    if let Some(kinds) = config.texts("layer_types")? {
        let recurrent: Vec<bool> = kinds.iter().map(|kind| *kind != FULL).collect();
        keys.bools("attention.recurrent_layers", recurrent);
    }
    let part = config
        .rope
        .number(&["partial_rotary_factor"])?
        .unwrap_or(0.25);
    keys.set(
        "rope.dimension_count",
        (f64::from(config.head()?) * part) as u32,
    );
    let sections = config.rope.numbers("mrope_section")?;
    let sections = sections.unwrap_or_else(|| vec![11.0, 11.0, 10.0]);
    let sections = sections
        .iter()
        .map(|&n| n as i32)
        .chain([0; 4])
        .take(4)
        .collect();
    keys.set(
        "rope.dimension_sections",
        Value::Array(Array::I32(sections)),
    );
    Ok(())
}

pub(super) fn gemma2(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
        keys.number(name, config, &[name])?;
    }
    let scalar = config.number(&["query_pre_attn_scalar"])?;
    let head = f64::from(config.head()?);
    let by_rows = f64::from(config.need(&["hidden_size"])?)
        / f64::from(config.need(&["num_attention_heads"])?.max(1));
    // The largest model of the family divides by another number, and is known by its depth.
    if scalar.is_some_and(|s| s != head && s != by_rows) {
        let what = format!("query_pre_attn_scalar {}", scalar.unwrap_or_default());
        return Err(ConvertError::unsupported(what, "it must be head_dim"));
    }
    keys.count("attention.sliding_window", config, &["sliding_window"])?;
    keys.windows(config, 2)
}

pub(super) fn gemma3(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    for (key, value) in [
        ("context_length", 131_072),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 4),
        ("attention.key_length", 256),
        ("attention.value_length", 256),
    ] {
        if !keys.has(key) {
            keys.set(key, value);
        }
    }
    if !keys.has("attention.layer_norm_rms_epsilon") {
        keys.set("attention.layer_norm_rms_epsilon", 1e-6_f32);
    }
    if !keys.has("rope.freq_base") {
        keys.set("rope.freq_base", 1e6_f32);
    }
    if config.get(&["attn_logit_softcapping"]).is_some() {
        let what = "attn_logit_softcapping of a Gemma 3 model";
        return Err(ConvertError::unsupported(
            what,
            "the published models have none",
        ));
    }
    keys.number(
        "final_logit_softcapping",
        config,
        &["final_logit_softcapping"],
    )?;
    keys.count("attention.sliding_window", config, &["sliding_window"])?;
    keys.windows(config, 6)
}

/// A count of the first layer without a window in `per_layer_config`, if it has one of its own.
fn of_full_layer(config: &CheckpointConfig, windows: &[bool], name: &str) -> Result<Option<u32>> {
    let layers = config.object("per_layer_config")?;
    let full = windows.iter().position(|within| !within);
    let own = full.and_then(|layer| layers.get(&layer.to_string())?.get(name));
    let count = |value: &serde_json::Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    match own.map(|value| (value, count(value))) {
        Some((value, None)) if !value.is_null() => {
            let problem = format!("{name} of a layer is {value}");
            Err(ConvertError::malformed("config.json", problem))
        }
        own => Ok(own.and_then(|own| own.1)),
    }
}

pub(super) fn gemma4(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    let missing = || ConvertError::malformed("config.json", "it has no layer_types");
    let windows = config.windows()?.ok_or_else(missing)?;
    let shared = config.count(&["num_kv_shared_layers"])?.unwrap_or(0);
    keys.set("attention.shared_kv_layers", shared);
    let input = config.count(&["hidden_size_per_layer_input"])?.unwrap_or(0);
    keys.set("embedding_length_per_layer_input", input);
    keys.count("attention.sliding_window", config, &["sliding_window"])?;
    keys.number(
        "final_logit_softcapping",
        config,
        &["final_logit_softcapping"],
    )?;
    let head = config.need(&["head_dim"])?;
    let full = config.count(&["global_head_dim"])?;
    let full = full.or(of_full_layer(config, &windows, "head_dim")?);
    let full = full.unwrap_or(head);
    for (key, value) in [
        ("attention.key_length", full),
        ("attention.value_length", full),
        ("attention.key_length_swa", head),
        ("attention.value_length_swa", head),
        ("rope.dimension_count", full),
        ("rope.dimension_count_swa", head),
    ] {
        keys.set(key, value);
    }
    let expert = ["expert_intermediate_size", "moe_intermediate_size"];
    keys.count("expert_feed_forward_length", config, &expert)?;
    if config.flag("use_double_wide_mlp")? {
        let ff = config.need(&["intermediate_size"])?;
        let own = windows.len().saturating_sub(shared as usize);
        let widths = (0..windows.len()).map(|layer| match layer < own {
            true => ff,
            false => ff.saturating_mul(2),
        });
        keys.set(
            "feed_forward_length",
            Value::Array(Array::U32(widths.collect())),
        );
    }
    let of_window = config.count(&["num_key_value_heads"])?;
    let of_full = config.count(&["num_global_key_value_heads"])?;
    let of_full = of_full.or(of_full_layer(config, &windows, "num_key_value_heads")?);
    if let (Some(of_window), Some(of_full)) = (of_window, of_full) {
        let heads = windows
            .iter()
            .map(|&within| if within { of_window } else { of_full });
        keys.set(
            "attention.head_count_kv",
            Value::Array(Array::U32(heads.collect())),
        );
    }
    // Pairs beyond the rotated part stay: their frequencies are divided by a large number.
    let part = config
        .rope
        .number(&["partial_rotary_factor"])?
        .unwrap_or(1.0);
    let (pairs, rotated) = (full / 2, (f64::from(full) * part / 2.0) as u32);
    let divisor = |pair| if pair < rotated { 1.0 } else { 1e30 };
    if full > MAX_HEAD {
        return Err(ConvertError::malformed(
            "config.json",
            "global_head_dim is too large",
        ));
    }
    let divisors = (0..pairs).map(divisor).collect();
    keys.tensors.push(("rope_freqs.weight", divisors));
    keys.bools("attention.sliding_window_pattern", windows);
    Ok(())
}

/// An assistant of Gemma 4: its layers are a text model whose keys and values are those of a model
/// of another width.
pub(super) fn gemma4_assistant(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    gemma4(config, keys)?;
    let layers = config.layers()?;
    keys.set("attention.shared_kv_layers", layers);
    keys.set("nextn_predict_layers", layers);
    let width = config.need(&["backbone_hidden_size"])?;
    keys.set("embedding_length_out", width);
    if config.flag("use_ordered_embeddings")? {
        keys.count("centroid_top_k", config, &["centroid_intermediate_top_k"])?;
    }
    Ok(())
}

pub(super) fn phi3(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    let rope = &config.rope;
    let original = rope.count(&["original_max_position_embeddings"])?;
    let context = config.need(&["max_position_embeddings"])?;
    let original = original.unwrap_or(context);
    let part = rope.number(&["partial_rotary_factor"])?.unwrap_or(1.0);
    let width = f64::from(config.need(&["hidden_size"])?) * part;
    let dims = width as u32 / config.need(&["num_attention_heads"])?.max(1);
    keys.set("rope.scaling.original_context_length", original);
    keys.set("rope.dimension_count", dims);
    let window = config.count(&["sliding_window"])?.unwrap_or(0);
    keys.set("attention.sliding_window", window);
    let long = rope.numbers("long_factor")?;
    let (Some(long), Some(short)) = (long, rope.numbers("short_factor")?) else {
        return Ok(());
    };
    if long.len() != short.len() || long.len() != dims as usize / 2 {
        let problem = format!("long_factor and short_factor need {} numbers", dims / 2);
        return Err(ConvertError::malformed("config.json", problem));
    }
    let stretch = f64::from(context) / f64::from(original.max(1));
    let factor = match stretch > 1.0 {
        true => (1.0 + stretch.ln() / f64::from(original).ln()).sqrt(),
        false => 1.0,
    };
    keys.set("rope.scaling.attn_factor", factor as f32);
    keys.tensors.push(("rope_factors_long.weight", long));
    keys.tensors.push(("rope_factors_short.weight", short));
    Ok(())
}

pub(super) fn olmo2(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    let Some(window) = config.count(&["sliding_window"])? else {
        return Ok(());
    };
    keys.set("attention.sliding_window", window);
    let layers = config.layers()? as usize;
    let usual = || (0..layers).map(|layer| (layer + 1) % 4 != 0).collect();
    let windows = config.windows()?.unwrap_or_else(usual);
    keys.bools("attention.sliding_window_pattern", windows);
    Ok(())
}

pub(super) fn gpt_oss(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    keys.count("attention.sliding_window", config, &["sliding_window"])?;
    keys.count("expert_feed_forward_length", config, &["intermediate_size"])?;
    keys.windows(config, 2)
}

pub(super) fn glm4moe(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    let part = config
        .rope
        .number(&["partial_rotary_factor"])?
        .unwrap_or(0.5);
    keys.set(
        "rope.dimension_count",
        (f64::from(config.head()?) * part) as u32,
    );
    keys.set("expert_gating_func", SIGMOID);
    mixture(config, keys)
}

pub(super) fn minimax_m2(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    keys.set("expert_gating_func", SIGMOID);
    keys.count("expert_feed_forward_length", config, &["intermediate_size"])?;
    let part = config
        .rope
        .number(&["partial_rotary_factor"])?
        .unwrap_or(1.0);
    let usual = (f64::from(config.head()?) * part) as u32;
    let rotated = config.count(&["rotary_dim"])?.unwrap_or(usual);
    keys.set("rope.dimension_count", rotated);
    Ok(())
}

/// Keys of mixtures of experts with shared ones.
fn mixture(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    keys.count(
        "expert_feed_forward_length",
        config,
        &["moe_intermediate_size"],
    )?;
    keys.count("expert_shared_count", config, &["n_shared_experts"])?;
    keys.count(
        "leading_dense_block_count",
        config,
        &["first_k_dense_replace"],
    )?;
    keys.number("expert_weights_scale", config, &["routed_scaling_factor"])?;
    if config.flag("norm_topk_prob")? {
        keys.set("expert_weights_norm", true);
    }
    Ok(())
}

pub(super) fn deepseek2(config: &CheckpointConfig, keys: &mut Keys<'_>) -> Result {
    // Latent attention is attention with one head of keys and values.
    keys.set("attention.head_count_kv", 1_u32);
    if !keys.has("attention.layer_norm_rms_epsilon") {
        keys.set("attention.layer_norm_rms_epsilon", 1e-6_f32);
    }
    let experts = config.count(&["n_routed_experts"])?;
    mixture(config, keys)?;
    if !keys.has("leading_dense_block_count") {
        let dense = if experts.is_some() {
            0
        } else {
            config.layers()?
        };
        keys.set("leading_dense_block_count", dense);
    }
    if !keys.has("expert_feed_forward_length") {
        keys.set(
            "expert_feed_forward_length",
            config.need(&["intermediate_size"])?,
        );
    }
    if !keys.has("expert_shared_count") {
        keys.set("expert_shared_count", 0_u32);
    }
    let is_sigmoid = config.class != "DeepseekV2ForCausalLM";
    if experts.is_some() && !keys.has("expert_gating_func") {
        let function = if is_sigmoid { SIGMOID } else { SOFTMAX };
        keys.set("expert_gating_func", function);
    }
    keys.count("vocab_size", config, &["vocab_size"])?;
    keys.count("attention.q_lora_rank", config, &["q_lora_rank"])?;
    let rank = config.count(&["kv_lora_rank"])?.unwrap_or(512);
    let rope = config.need(&["qk_rope_head_dim"])?;
    let nope = config.need(&["qk_nope_head_dim"])?;
    let sum = |a: u32, b: u32| {
        let overflow = || ConvertError::malformed("config.json", "a head's width overflows");
        a.checked_add(b).ok_or_else(overflow)
    };
    keys.set("attention.kv_lora_rank", rank);
    keys.set("attention.key_length", sum(rank, rope)?);
    keys.set("attention.value_length", rank);
    keys.set("attention.key_length_mla", sum(nope, rope)?);
    keys.set("attention.value_length_mla", config.need(&["v_head_dim"])?);
    keys.set("rope.dimension_count", rope);
    if let Some(scale) = config.rope.number(&["mscale_all_dim"])? {
        // The key has the factor already.
        keys.set("rope.scaling.yarn_log_multiplier", (0.1 * scale) as f32);
    }
    Ok(())
}
