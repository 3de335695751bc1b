//! `config.json`: typed access to hyper-parameters under any of their names.

use super::error::ConvertError;
use super::folder::Object;
use serde_json::Value as Json;

/// Name of the file, for messages.
pub(super) const FILE: &str = "config.json";
/// Names of the fields of a model's text part.
const TEXT_PARTS: [&str; 3] = ["text_config", "llm_config", "language_config"];
/// Kinds of layers with a RoPE of their own.
pub(super) const FULL: &str = "full_attention";
pub(super) const SLIDING: &str = "sliding_attention";

/// Hyper-parameters of a checkpoint.
pub(super) struct CheckpointConfig {
    fields: Fields,
    /// RoPE of full-attention layers: base and scaling.
    pub rope: Fields,
    /// RoPE of windowed layers, if it differs.
    pub window_rope: Fields,
    /// First of `architectures`: the class in transformers.
    pub class: String,
}

/// Fields of a JSON object, and the name of the object for messages.
pub(super) struct Fields {
    object: Object,
    name: &'static str,
}

impl Fields {
    fn wrong(&self, name: &str, value: &Json, expected: &str) -> ConvertError {
        let prefix = self.name;
        ConvertError::malformed(FILE, format!("{prefix}{name} is {value}, not {expected}"))
    }
    /// The first of these fields that is there and not null.
    pub fn get<'n>(&self, names: &[&'n str]) -> Option<(&'n str, &Json)> {
        let mut found = names
            .iter()
            .filter_map(|&n| self.object.get(n).map(|v| (n, v)));
        found.find(|(_, value)| !value.is_null())
    }
    /// A count or size.
    pub fn count(&self, names: &[&str]) -> Result<Option<u32>, ConvertError> {
        let Some((name, value)) = self.get(names) else {
            return Ok(None);
        };
        // Some files write counts as 1e6.
        let whole = value
            .as_f64()
            .filter(|v| v.fract() == 0.0)
            .map(|v| v as i64);
        let count = value.as_i64().or(whole).and_then(|n| u32::try_from(n).ok());
        let wrong = || self.wrong(name, value, "an integer in 0..2³²");
        count.ok_or_else(wrong).map(Some)
    }
    /// A count that every model of a family has.
    pub fn need(&self, names: &[&str]) -> Result<u32, ConvertError> {
        let missing = || ConvertError::malformed(FILE, format!("it has no {}", names[0]));
        self.count(names)?.ok_or_else(missing)
    }
    /// A number that is finite as f32.
    pub fn number(&self, names: &[&str]) -> Result<Option<f64>, ConvertError> {
        let Some((name, value)) = self.get(names) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|v| (*v as f32).is_finite());
        let wrong = || self.wrong(name, value, "a number");
        number.ok_or_else(wrong).map(Some)
    }
    /// A text; `None` if the field is absent.
    pub fn text(&self, names: &[&str]) -> Result<Option<&str>, ConvertError> {
        let Some((name, value)) = self.get(names) else {
            return Ok(None);
        };
        let wrong = || self.wrong(name, value, "a text");
        value.as_str().ok_or_else(wrong).map(Some)
    }
    /// A truth value; false if it is absent.
    pub fn flag(&self, name: &str) -> Result<bool, ConvertError> {
        match self.object.get(name) {
            None | Some(Json::Null) => Ok(false),
            Some(Json::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.wrong(name, other, "true or false")),
        }
    }
    /// A list of numbers; `None` if it is absent.
    pub fn numbers(&self, name: &str) -> Result<Option<Vec<f32>>, ConvertError> {
        let Some((name, value)) = self.get(&[name]) else {
            return Ok(None);
        };
        let list = value.as_array().and_then(|list| {
            let numbers = list.iter().map(|v| v.as_f64().map(|v| v as f32));
            numbers.collect::<Option<Vec<f32>>>()
        });
        let wrong = || self.wrong(name, value, "a list of numbers");
        list.ok_or_else(wrong).map(Some)
    }
    /// A list of texts; `None` if it is absent.
    pub fn texts(&self, name: &str) -> Result<Option<Vec<&str>>, ConvertError> {
        let Some((name, value)) = self.get(&[name]) else {
            return Ok(None);
        };
        let list = value.as_array();
        let list = list.and_then(|list| list.iter().map(Json::as_str).collect());
        let wrong = || self.wrong(name, value, "a list of texts");
        list.ok_or_else(wrong).map(Some)
    }
    /// A JSON object; empty if it is absent.
    pub fn object(&self, name: &str) -> Result<Object, ConvertError> {
        match self.object.get(name) {
            None | Some(Json::Null) => Ok(Object::new()),
            Some(Json::Object(object)) => Ok(object.clone()),
            Some(other) => Err(self.wrong(name, other, "an object")),
        }
    }
}

impl std::ops::Deref for CheckpointConfig {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.fields
    }
}

impl CheckpointConfig {
    /// Reads the hyper-parameters of the text model.
    pub fn new(mut fields: Object) -> Result<CheckpointConfig, ConvertError> {
        let class = fields.get("architectures").and_then(|list| list.get(0));
        let class = class.and_then(Json::as_str).unwrap_or_default().to_owned();
        if class.is_empty() {
            return Err(ConvertError::malformed(FILE, "it names no architectures"));
        }
        for part in TEXT_PARTS {
            if let Some(Json::Object(of_text)) = fields.remove(part) {
                fields.extend(of_text);
            }
        }
        let fields = Fields {
            object: fields,
            name: "",
        };
        let parameters = match fields.get(&["rope_parameters"]) {
            Some(_) => "rope_parameters",
            None => "rope_scaling",
        };
        let mut rope = fields.object(parameters)?;
        let mut of_kind = |kind: &str| match rope.remove(kind) {
            Some(Json::Object(object)) => Some(object),
            _ => None,
        };
        let (full, sliding) = (of_kind(FULL), of_kind(SLIDING));
        let mut window = sliding.unwrap_or_default();
        let mut rope = full.unwrap_or(rope);
        let mirrored: [(&str, &[&str]); 4] = [
            (
                "rope_theta",
                &["rope_theta", "global_rope_theta", "rotary_emb_base"],
            ),
            (
                "partial_rotary_factor",
                &["partial_rotary_factor", "rope_pct"],
            ),
            (
                "original_max_position_embeddings",
                &["original_max_position_embeddings"],
            ),
            ("rope_type", &[]),
        ];
        for (name, names) in mirrored {
            let own = rope.get("type").filter(|_| name == "rope_type").cloned();
            let value = own.or_else(|| fields.get(names).map(|(_, value)| value.clone()));
            if let (Some(value), false) = (value, rope.contains_key(name)) {
                rope.insert(name.into(), value);
            }
        }
        let local = fields.get(&["rope_local_base_freq", "local_rope_theta", "swa_rope_theta"]);
        if let (Some((_, base)), true) = (local, window.is_empty()) {
            window.insert("rope_theta".into(), base.clone());
        }
        Ok(CheckpointConfig {
            rope: Fields {
                object: rope,
                name: "rope_parameters.",
            },
            window_rope: Fields {
                object: window,
                name: "rope_parameters.sliding_attention.",
            },
            fields,
            class,
        })
    }
    /// Width of an attention head.
    pub fn head(&self) -> Result<u32, ConvertError> {
        match self.count(&["head_dim"])? {
            Some(head) => Ok(head),
            None => Ok(self.need(&["hidden_size"])? / self.need(&["num_attention_heads"])?.max(1)),
        }
    }
    /// Number of layers, without blocks for draft tokens.
    pub fn layers(&self) -> Result<u32, ConvertError> {
        let layers = self.need(&["num_hidden_layers", "n_layers", "num_layers", "n_layer"])?;
        match layers {
            1..=MAX_LAYERS => Ok(layers),
            _ => {
                let problem = format!("num_hidden_layers is {layers}, not 1 to {MAX_LAYERS}");
                Err(ConvertError::malformed(FILE, problem))
            }
        }
    }
    /// Whether each layer has a sliding window; `None` if it is not given.
    pub fn windows(&self) -> Result<Option<Vec<bool>>, ConvertError> {
        let Some(kinds) = self.texts("layer_types")? else {
            return Ok(None);
        };
        if kinds.len() != self.layers()? as usize {
            let problem = format!("layer_types has {} entries", kinds.len());
            return Err(ConvertError::malformed(FILE, problem));
        }
        Ok(Some(kinds.iter().map(|kind| *kind == SLIDING).collect()))
    }
}

/// Most layers of a model: the deepest published ones have about 130.
const MAX_LAYERS: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(json: Json) -> Result<CheckpointConfig, ConvertError> {
        CheckpointConfig::new(json.as_object().unwrap().clone())
    }

    #[test]
    fn rope_is_found_in_the_forms_of_all_versions() {
        let old = config(json!({
            "architectures": ["A"], "rope_theta": 5e5, "rope_local_base_freq": 1e4,
            "rope_scaling": {"type": "linear", "factor": 8.0},
        }))
        .unwrap();
        let new = config(json!({
            "architectures": ["A"],
            "text_config": {"rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }},
        }))
        .unwrap();
        for config in [old, new] {
            assert_eq!(config.rope.text(&["rope_type"]).unwrap(), Some("linear"));
            assert_eq!(config.rope.number(&["rope_theta"]).unwrap(), Some(5e5));
            assert_eq!(
                config.window_rope.number(&["rope_theta"]).unwrap(),
                Some(1e4)
            );
        }
    }

    #[test]
    fn malformed_values_are_named() {
        let of = |name: &str, value: Json| {
            let mut json = json!({"architectures": ["A"]});
            json[name] = value;
            config(json).unwrap()
        };
        let error = of("x", json!(-1)).count(&["x"]).unwrap_err().to_string();
        assert!(error.contains("x is -1"), "{error}");
        assert_eq!(of("x", json!(1e3)).count(&["x"]).unwrap(), Some(1000));
        assert!(of("x", json!(1.5)).count(&["x"]).is_err());
        assert!(of("x", json!("1")).number(&["x"]).is_err());
        assert!(of("num_hidden_layers", json!(1 << 30)).layers().is_err());
        assert!(of("layer_types", json!([1])).windows().is_err());
        assert!(config(json!({})).is_err());
    }
}
