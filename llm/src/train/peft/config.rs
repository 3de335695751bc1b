//! `adapter_config.json`: the factor of every module, and kinds of adapters that are refused.

use super::super::adapter::AdapterError;
use serde_json::{Map, Value as Json};
use std::io::Read;
use std::path::Path;

/// Longest file in bytes; real ones have about a thousand.
const LONGEST: u64 = 1 << 20;

/// Settings that change more than `A`, `B` and their factor, in plain words. All of them may be
/// there with a value that turns them off.
const REFUSED: [(&str, &str); 9] = [
    ("use_dora", "DoRA"),
    ("use_qalora", "QALoRA"),
    ("lora_bias", "biases of adapters"),
    ("fan_in_fan_out", "transposed weights"),
    ("modules_to_save", "fully trained modules"),
    ("trainable_token_indices", "trained rows of embeddings"),
    (
        "target_parameters",
        "adapters of parameters such as experts",
    ),
    ("layer_replication", "repeated layers"),
    ("alora_invocation_tokens", "activated LoRA"),
];

/// Ways to begin an adapter that leave the model's weights as they are.
const INITIAL: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// Characters that make a pattern more than a name.
const PATTERN: [char; 13] = [
    '^', '$', '*', '+', '?', '(', ')', '[', ']', '{', '}', '|', '\\',
];

/// What the factors of an adapter follow from.
#[derive(Debug, Default)]
pub(super) struct Config {
    rank: usize,
    alpha: f64,
    /// Whether the factor is `alpha / √rank` in place of `alpha / rank`.
    root: bool,
    has_ranks: bool,
    /// Ends of module names with an alpha of their own.
    alphas: Vec<(String, f64)>,
}

impl Config {
    pub fn read(path: &Path) -> Result<Config, AdapterError> {
        let failed = |error| AdapterError::Io("read", path.display().to_string(), error);
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(AdapterError::Peft(
                "adapter_config.json is no regular file".into(),
            ));
        }
        let mut text = String::new();
        let mut file = std::fs::File::open(path).map_err(failed)?.take(LONGEST);
        file.read_to_string(&mut text).map_err(failed)?;
        Config::parse(&text)
            .map_err(|problem| AdapterError::Peft(format!("adapter_config.json: {problem}")))
    }
    fn parse(text: &str) -> Result<Config, String> {
        let object: Map<String, Json> =
            serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))?;
        let kind = object.get("peft_type").and_then(Json::as_str);
        if kind != Some("LORA") {
            return Err(format!(
                "peft_type is {}, not LORA",
                kind.unwrap_or("not given")
            ));
        }
        let value = |name: &str| object.get(name).unwrap_or(&Json::Null);
        for (name, what) in REFUSED {
            if !is_off(value(name)) {
                return Err(format!(
                    "{what} ({name}) are not supported: train without, or merge"
                ));
            }
        }
        if !matches!(value("bias").as_str(), None | Some("none")) {
            return Err("trained biases are not supported: train with bias \"none\"".into());
        }
        if let Some(first) = value("init_lora_weights")
            .as_str()
            .filter(|n| !INITIAL.contains(n))
        {
            return Err(format!(
                "init_lora_weights {first} changes the model's weights: convert the adapter with \
                 path_initial_model_for_weight_conversion"
            ));
        }
        let rank = value("r")
            .as_u64()
            .filter(|&r| r > 0)
            .ok_or("r is no positive integer")?;
        let mut alphas = Vec::new();
        for (name, alpha) in value("alpha_pattern").as_object().into_iter().flatten() {
            if name.contains(PATTERN) {
                return Err(format!(
                    "alpha_pattern {name} is not supported: name modules in full"
                ));
            }
            alphas.push((name.clone(), number(alpha, "alpha_pattern")?));
        }
        Ok(Config {
            rank: rank as usize,
            alpha: number(value("lora_alpha"), "lora_alpha")?,
            root: value("use_rslora").as_bool() == Some(true),
            has_ranks: !is_off(value("rank_pattern")),
            alphas,
        })
    }
    /// The alpha of a GGUF adapter of this module, whose factor is alpha / rank.
    pub fn gguf_alpha(&self, path: &str, rank: usize) -> Result<f32, String> {
        if rank != self.rank && !self.has_ranks {
            let own = self.rank;
            return Err(format!(
                "it has rank {rank}, and adapter_config.json says {own}"
            ));
        }
        let ends = |name: &str| {
            let rest = path.strip_suffix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let own = self.alphas.iter().find(|(name, _)| ends(name));
        let alpha = own.map_or(self.alpha, |own| own.1);
        Ok(match self.root {
            true => (alpha * (rank as f64).sqrt()) as f32,
            false => alpha as f32,
        })
    }
}

/// A finite number that is not zero: GGUF's alpha of 0 means a factor of 1.
fn number(value: &Json, name: &str) -> Result<f64, String> {
    let fits = |v: &f64| *v as f32 != 0.0 && (*v as f32).is_finite();
    let number = value.as_f64().filter(fits);
    number.ok_or_else(|| format!("{name} is {value}, not a number other than 0"))
}

/// Whether a setting is absent, false or empty.
fn is_off(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(list) => list.is_empty(),
        Json::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(name: &str, value: Json) -> Result<Config, String> {
        let mut config = json!({
            "peft_type": "LORA", "r": 16, "lora_alpha": 8, "bias": "none",
            "use_dora": false, "modules_to_save": null, "init_lora_weights": true,
        });
        config[name] = value;
        Config::parse(&config.to_string())
    }

    #[test]
    fn factors_follow_from_alpha_rank_and_patterns() {
        let plain = with("r", json!(16)).unwrap();
        assert_eq!(plain.gguf_alpha("model.layers.0.mlp.up_proj", 16), Ok(8.0));
        assert!(plain.gguf_alpha("x", 4).unwrap_err().contains("rank 4"));
        let root = with("use_rslora", json!(true)).unwrap();
        assert_eq!(root.gguf_alpha("x", 16), Ok(32.0));
        let ranks = with("rank_pattern", json!({ "up_proj": 4 })).unwrap();
        assert_eq!(ranks.gguf_alpha("a.up_proj", 4), Ok(8.0));
        let alphas = with("alpha_pattern", json!({ "up_proj": 3.5 })).unwrap();
        assert_eq!(alphas.gguf_alpha("a.up_proj", 16), Ok(3.5));
        assert_eq!(alphas.gguf_alpha("a.gate_up_proj", 16), Ok(8.0));
    }

    #[test]
    fn other_adapters_are_refused_by_name() {
        for (name, value, expected) in [
            ("use_dora", json!(true), "DoRA (use_dora)"),
            (
                "modules_to_save",
                json!(["lm_head"]),
                "fully trained modules",
            ),
            ("bias", json!("all"), "trained biases"),
            ("peft_type", json!("IA3"), "peft_type is IA3"),
            ("init_lora_weights", json!("pissa_niter_4"), "pissa_niter_4"),
            ("alpha_pattern", json!({ ".*up": 3 }), "alpha_pattern .*up"),
            ("lora_alpha", json!(0), "lora_alpha is 0"),
            ("lora_alpha", json!(1e300), "lora_alpha is 1e"),
            ("r", json!(-1), "r is no positive integer"),
        ] {
            let problem = with(name, value).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
        assert!(Config::parse("[1]").unwrap_err().contains("JSON object"));
    }
}
