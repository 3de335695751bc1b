//! Text configurations of models: what training from random weights begins with.

use super::plan::file_type;
use super::{ConfigError, Error, SynthPlan, TensorPlan, fill};
use crate::arch::{self, TensorSpec, Tensors};
use crate::gguf::{Array, Gguf, Metadata, Role, Value, types};
use gristmill_encodings::F32;
use gristmill_uop::encoding::EncodingRef;
use serde::Deserialize;
use serde_json::{Map, Number, Value as Json};

/// Standard deviation of the weights (GPT-2).
const SIGMA: f32 = 0.02;

/// A model without weights: hyper-parameters, types, and the file that its tokenizer comes from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Model with the tokenizer and the chat template.
    pub tokenizer: String,
    /// Type of the matrices, as [`super::quants`] names it.
    #[serde(rename = "type")]
    file_type: String,
    /// Optional tensors of the architecture that the model has, without the prefix of blocks.
    #[serde(default)]
    tensors: Vec<String>,
    /// Keys and values of the file's metadata.
    metadata: Map<String, Json>,
}

impl ModelConfig {
    /// Parses a JSON object.
    ///
    /// # Errors
    /// When the text is malformed, a field is missing, or there is an unknown one.
    pub fn parse(text: &str) -> Result<ModelConfig, ConfigError> {
        Ok(serde_json::from_str(text)?)
    }
    /// Opens a model with random weights, which are a function of names and `seed`: normal with
    /// a standard deviation of 0.02, over √(2·blocks) where a layer adds to the residual stream;
    /// norms are 1, biases 0.
    ///
    /// # Errors
    /// When the metadata describes no model, or a name is unknown.
    pub fn initial_model(&self, tokenizer: &Metadata, seed: u64) -> Result<Gguf, Error> {
        self.plan(tokenizer, seed)?.open()
    }
    fn plan(&self, tokenizer: &Metadata, seed: u64) -> Result<SynthPlan, Error> {
        let file_type = file_type(&self.file_type)?;
        let (metadata, vocabulary) = self.metadata(tokenizer, file_type)?;
        let found = Optional {
            names: &self.tensors,
            vocabulary,
        };
        let specs = arch::tensors(&metadata, &found)?;
        let blocks = specs.iter().filter_map(|s| s.layer).max();
        let blocks = blocks.map_or(0, |last| last as u64 + 1);
        let of_seed = |name: &str| fill::seed(name).wrapping_add(fill::word(seed, 0));
        let tensors = specs.into_iter().map(|spec| {
            let mut tensor = tensor(spec, file_type, blocks)?;
            tensor.seed = of_seed(&tensor.name);
            Ok::<_, Error>(tensor)
        });
        Ok(SynthPlan {
            tensors: tensors.collect::<Result<_, _>>()?,
            metadata,
        })
    }
    /// The file's metadata, and the tokens of its vocabulary.
    fn metadata(
        &self,
        tokenizer: &Metadata,
        file_type: &types::FileType,
    ) -> Result<(Metadata, u64), Error> {
        let mut out = Metadata::new();
        out.insert("general.type", "model");
        for (key, json) in &self.metadata {
            if key.starts_with("tokenizer.") {
                return Err(ConfigError::Tokenizer(key.clone()).into());
            }
            let value = value(json).ok_or_else(|| ConfigError::Value(key.clone()))?;
            out.insert(key.as_str(), value);
        }
        out.insert("general.file_type", file_type.id);
        let of_tokenizer = tokenizer
            .iter()
            .filter(|(key, _)| key.starts_with("tokenizer."));
        of_tokenizer.for_each(|(key, value)| {
            out.insert(key, value.clone());
        });
        let tokens = tokenizer.strings("tokenizer.ggml.tokens")?;
        let missing = || ConfigError::NoTokenizer(self.tokenizer.clone());
        let size = tokens.ok_or_else(missing)?.len();
        if let Some(architecture) = out.str("general.architecture")?.map(str::to_owned) {
            out.insert(format!("{architecture}.vocab_size"), size as u32);
        }
        Ok((out, size as u64))
    }
}

/// A value of JSON as one of GGUF: whole numbers as u32 or i32, others as f32.
fn value(json: &Json) -> Option<Value> {
    let whole = |n: &Number| n.as_u64().and_then(|n| u32::try_from(n).ok());
    let signed = |n: &Number| n.as_i64().and_then(|n| i32::try_from(n).ok());
    let float = |n: &Number| n.as_f64().map(|n| n as f32);
    match json {
        Json::Bool(value) => Some((*value).into()),
        Json::String(text) => Some(text.as_str().into()),
        Json::Number(n) => {
            let of_whole = whole(n)
                .map(Value::from)
                .or_else(|| signed(n).map(Value::from));
            of_whole.or_else(|| float(n).map(Value::from))
        }
        Json::Array(list) => {
            let bools: Option<Vec<bool>> = list.iter().map(Json::as_bool).collect();
            if let Some(bools) = bools {
                return Some(Value::Array(Array::Bool(bools)));
            }
            let numbers: Vec<&Number> = list.iter().map(Json::as_number).collect::<Option<_>>()?;
            let wholes: Option<Vec<u32>> = numbers.iter().map(|n| whole(n)).collect();
            let floats = || {
                numbers
                    .iter()
                    .map(|n| float(n))
                    .collect::<Option<Vec<f32>>>()
            };
            wholes
                .map(Value::from)
                .or_else(|| floats().map(Value::from))
        }
        Json::Null | Json::Object(_) => None,
    }
}

/// Tensor source for an architecture's table: the rows of the embedding, and optional tensors.
struct Optional<'a> {
    names: &'a [String],
    vocabulary: u64,
}

impl Tensors for Optional<'_> {
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
        let block = name.strip_prefix("blk.").and_then(|n| n.split_once('.'));
        let short = block.map_or(name, |n| n.1);
        let has = short == "token_embd.weight" || self.names.iter().any(|own| own == short);
        has.then(|| (vec![0, self.vocabulary], &F32 as EncodingRef))
    }
}

/// Whether a layer adds the products of this matrix to the residual stream.
fn adds_to_residual(short: &str) -> bool {
    short == "attn_output.weight" || (short.starts_with("ffn_down") && short.ends_with(".weight"))
}

/// The plan of a tensor; its seed is that of the name.
pub(super) fn tensor(
    spec: TensorSpec,
    file_type: &types::FileType,
    blocks: u64,
) -> Result<TensorPlan, Error> {
    let (mean, sigma) = match spec.role {
        Role::Norm => (1.0, 0.0),
        Role::Bias => (0.0, 0.0),
        _ if adds_to_residual(&spec.short) => (0.0, SIGMA / (2.0 * blocks as f32).sqrt()),
        _ => (0.0, SIGMA),
    };
    super::preset::planned(spec, file_type, blocks, (mean, sigma))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_take_the_narrowest_type() {
        for (json, expected) in [
            (json!(6), Some(Value::from(6u32))),
            (json!(-6), Some(Value::from(-6i32))),
            (json!(1e-5), Some(Value::from(1e-5f32))),
            (json!(10000.0), Some(Value::from(10000f32))),
            (json!(true), Some(true.into())),
            (json!("silu"), Some("silu".into())),
            (json!([1, 2]), Some(vec![1u32, 2].into())),
            (json!([1, 0.5]), Some(vec![1f32, 0.5].into())),
            (json!(null), None),
            (json!(["a"]), None),
            (json!({}), None),
        ] {
            assert_eq!(value(&json), expected, "{json}");
        }
    }
}
