//! Low-rank adapters in the layout of Hugging Face PEFT: `adapter_config.json`, and
//! `adapter_model.safetensors` with `base_model.model.model.layers.N.M.lora_A.weight [rank, in]`
//! and `….lora_B.weight [out, rank]` for a module `M`.
//!
//! They are read as GGUF adapters in memory. [`modules`] maps modules to tensors. Conversion to
//! GGUF reorders the rows of some queries and keys, and so the rows of their `lora_B`.

mod config;
mod files;

use super::adapter::{Adapter, AdapterError, AdapterTensor, is_adaptable};
use crate::arch::{LowRank, Model, TensorSpec};
use crate::gguf::{Gguf, Metadata, PerLayer};
use crate::module_names::{Direction, is_permuted, modules, permutation};
use config::Config;
use files::TensorFile;
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub use files::is_peft;

/// Keys of the numbers of heads of tensors whose rows a conversion reorders.
const HEADS: [(&str, &str); 2] = [
    ("attn_q", "attention.head_count"),
    ("attn_k", "attention.head_count_kv"),
];

/// Begin of all keys.
const ROOT: &str = "base_model.model.";
/// Begins of the names of blocks in text models and in those with images; the first is written.
const LAYERS: [&str; 3] = [
    "model.layers.",
    "model.language_model.layers.",
    "language_model.model.layers.",
];
/// Ends of the keys of `A` and `B`.
const SIDES: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];

/// Reads an adapter of `model`: a GGUF file, a folder of PEFT, or its `.safetensors` file. `of` is
/// the model's metadata.
///
/// # Errors
/// When files are malformed, have a kind of adapter that is not supported, or do not fit the model.
pub fn open_adapter(path: &Path, model: &dyn Model, of: &Metadata) -> Result<Gguf, AdapterError> {
    match is_peft(path) {
        false => Ok(Gguf::open(path)?),
        true => read(path, model, of)?.to_file(),
    }
}

fn read(path: &Path, model: &dyn Model, of: &Metadata) -> Result<Adapter, AdapterError> {
    let [config, weights] = files::paths(path);
    let config = Config::read(&config)?;
    let mut file = TensorFile::open(&weights)?;
    let mut found: BTreeMap<String, Found> = BTreeMap::new();
    for name in file.names() {
        let failed = |problem: String| AdapterError::Tensor {
            name: name.clone(),
            problem,
        };
        let (key, side) = Key::parse(&name, model).map_err(failed)?;
        let pair = found.entry(key.weight()).or_insert_with(|| Found {
            key,
            names: [None, None],
        });
        if pair.names[side].replace(name.clone()).is_some() {
            return Err(failed("a second matrix of the same weight".into()));
        }
    }
    let mut adapter = Adapter {
        architecture: model.architecture().into(),
        alpha: 0.0,
        tensors: BTreeMap::new(),
    };
    for (weight, pair) in &found {
        let named = |problem: String| AdapterError::Tensor {
            name: format!("{ROOT}{}", pair.key.path),
            problem,
        };
        let [a, b] = pair.read(&mut file, model, weight)?;
        let rank = a.dims[0];
        let alpha = config.gguf_alpha(&pair.key.path, rank).map_err(named)?;
        if adapter.alpha == 0.0 {
            adapter.alpha = alpha;
        }
        // A GGUF adapter has one alpha: the others are in the matrices.
        let scale = alpha / adapter.alpha;
        let mut b = b;
        if scale != 1.0 {
            b.values.iter_mut().for_each(|v| *v *= scale);
        }
        if let Some(heads) = heads(&pair.key, model, of).map_err(named)? {
            b.values = permuted(&b.values, rank, heads, Direction::ToGguf).map_err(named)?;
        }
        for (name, tensor) in LowRank::matrices(weight).into_iter().zip([a, b]) {
            adapter.tensors.insert(name, tensor);
        }
    }
    match adapter.tensors.is_empty() {
        true => Err(AdapterError::Peft("the adapter has no matrices".into())),
        false => Ok(adapter),
    }
}

/// The matrices of a weight in a file, by name.
struct Found {
    key: Key,
    names: [Option<String>; 2],
}

impl Found {
    /// Reads both matrices; their shapes are checked first.
    fn read(
        &self,
        file: &mut TensorFile,
        model: &dyn Model,
        weight: &str,
    ) -> Result<[AdapterTensor; 2], AdapterError> {
        let failed = |side: usize, problem: String| AdapterError::Tensor {
            name: format!("{ROOT}{}{}", self.key.path, SIDES[side]),
            problem,
        };
        let [Some(a), Some(b)] = &self.names else {
            let missing = usize::from(self.names[0].is_some());
            return Err(failed(missing, "it is missing".into()));
        };
        let spec = adaptable(model, weight);
        let Some([out, width]) = spec.map(|spec| &spec.dims[..]) else {
            return Err(failed(0, format!("the model has no linear layer {weight}")));
        };
        let shapes = [a, b].map(|name| file.shape(name));
        let rank = shapes[0].first().copied().unwrap_or_default();
        for (side, expected) in [[rank, *width], [*out, rank]].into_iter().enumerate() {
            if rank == 0 || shapes[side] != expected {
                let found = &shapes[side];
                let problem = format!("it is {found:?}, expected {expected:?}");
                return Err(failed(side, problem));
            }
        }
        let mut read = |name: &str, dims: &[usize]| {
            Ok::<_, AdapterError>(AdapterTensor {
                dims: dims.to_vec(),
                values: file.read(name)?,
            })
        };
        Ok([read(a, &shapes[0])?, read(b, &shapes[1])?])
    }
}

/// The linear layer of that name.
fn adaptable<'m>(model: &'m dyn Model, weight: &str) -> Option<&'m TensorSpec> {
    let spec = model.tensors().iter().find(|t| t.name == weight)?;
    is_adaptable(spec).then_some(spec)
}

/// A module of one block that has an adapter.
struct Key {
    layer: usize,
    tensor: &'static str,
    /// Full name of the module, such as `model.layers.0.self_attn.q_proj`.
    path: String,
}

impl Key {
    /// Parses the name of a matrix; returns its module and 0 for `A`, 1 for `B`.
    fn parse(name: &str, model: &dyn Model) -> Result<(Key, usize), String> {
        let Some(rest) = name.strip_prefix(ROOT) else {
            return Err(format!("names in PEFT's files begin with {ROOT}"));
        };
        let sides = SIDES.iter().enumerate();
        let mut of_side = sides.filter_map(|(i, side)| Some((rest.strip_suffix(side)?, i)));
        let Some((path, side)) = of_side.next() else {
            return Err(match rest {
                _ if rest.contains("lora_magnitude_vector") => {
                    "DoRA is not supported: train without use_dora, or merge the adapter".into()
                }
                _ if rest.contains("lora_embedding_") => {
                    "adapters of embeddings are not supported: train without embed_tokens".into()
                }
                _ => "it is no matrix of LoRA: train without modules_to_save and biases".into(),
            });
        };
        let of_layer = LAYERS.iter().find_map(|begin| path.strip_prefix(begin));
        let Some((layer, module)) = of_layer.and_then(|rest| rest.split_once('.')) else {
            return Err("only linear layers of blocks can have adapters".into());
        };
        if module.contains("experts.") && !module.contains("shared_experts.") {
            return Err("experts' adapters are not converted; GGUF adapters have them".into());
        }
        let layer = layer.parse().ok().filter(|&n| n < model.layers());
        let Some(layer) = layer else {
            return Err(format!("the model has {} blocks", model.layers()));
        };
        let Some(row) = modules(model.architecture()).find(|row| row.module == module) else {
            let of = model.architecture();
            return Err(format!(
                "adapters of {module} are not converted for {of}; leave it out of target_modules"
            ));
        };
        let key = Key {
            layer,
            tensor: row.tensor,
            path: path.into(),
        };
        Ok((key, side))
    }
    /// Finds the module of a GGUF weight.
    fn of_weight(weight: &str, architecture: &str) -> Option<(Key, &'static str)> {
        let (layer, tensor) = weight.strip_prefix("blk.")?.split_once('.')?;
        let tensor = tensor.strip_suffix(".weight")?;
        let row = modules(architecture).find(|row| row.tensor == tensor)?;
        let key = Key {
            layer: layer.parse().ok()?,
            tensor: row.tensor,
            path: format!("{}{layer}.{}", LAYERS[0], row.module),
        };
        Some((key, row.module))
    }
    fn weight(&self) -> String {
        format!("blk.{}.{}.weight", self.layer, self.tensor)
    }
}

/// Heads of a weight whose rows were reordered; `None` for others.
fn heads(key: &Key, model: &dyn Model, of: &Metadata) -> Result<Option<usize>, String> {
    let architecture = model.architecture();
    let row = HEADS.iter().find(|row| row.0 == key.tensor);
    let Some((_, name)) = row.filter(|_| is_permuted(architecture)) else {
        return Ok(None);
    };
    // Files without grouped queries may name only the heads of queries.
    for name in [name, HEADS[0].1] {
        let count = of
            .per_layer(&format!("{architecture}.{name}"), model.layers())
            .map_err(|error| error.to_string())?;
        match count {
            Some(PerLayer::All(heads)) => return Ok(Some(heads as usize)),
            Some(PerLayer::Each(heads)) => return Ok(heads.get(key.layer).map(|&h| h as usize)),
            None => continue,
        }
    }
    Err("the model does not say how many heads it has".into())
}

/// Rows of a matrix with `width` columns in the order of GGUF or of Hugging Face.
fn permuted(
    values: &[f32],
    width: usize,
    heads: usize,
    direction: Direction,
) -> Result<Vec<f32>, String> {
    let mut out = Vec::with_capacity(values.len());
    for row in permutation(values.len() / width, heads, direction)? {
        out.extend(&values[row * width..][..width]);
    }
    Ok(out)
}

/// Checks, before training, that adapters of these GGUF weights can be written for PEFT.
///
/// # Errors
/// When a weight has no module of its own, such as experts.
pub fn check_exportable(architecture: &str, weights: &[String]) -> Result<(), AdapterError> {
    let lacks = |weight: &&String| Key::of_weight(weight, architecture).is_none();
    match weights.iter().find(lacks) {
        None => Ok(()),
        Some(weight) => Err(AdapterError::Peft(format!(
            "an adapter of {weight} cannot be written in the layout of PEFT"
        ))),
    }
}

/// Writes an adapter of `model` in the layout of PEFT to a folder, or to a `.safetensors` file with
/// `adapter_config.json` in the same folder. `of` is the model's metadata.
///
/// # Errors
/// When a weight has no module in that layout, or a file cannot be written.
pub fn write_peft(
    adapter: &Adapter,
    model: &dyn Model,
    of: &Metadata,
    path: &Path,
) -> Result<(), AdapterError> {
    let mut tensors = Vec::new();
    let mut modules = Vec::new();
    for (weight, shape) in &adapter.low_rank().shapes {
        let Some((key, module)) = Key::of_weight(weight, model.architecture()) else {
            return check_exportable(model.architecture(), std::slice::from_ref(weight));
        };
        let named = |problem: String| AdapterError::Tensor {
            name: weight.clone(),
            problem,
        };
        let [a, b] = LowRank::matrices(weight).map(|name| adapter.tensors.get(&name));
        let (Some(a), Some(b)) = (a, b) else {
            return Err(named("a matrix is missing".into()));
        };
        let mut b = b.clone();
        if let Some(heads) = heads(&key, model, of).map_err(named)? {
            b.values =
                permuted(&b.values, shape.rank, heads, Direction::FromGguf).map_err(named)?;
        }
        for (side, tensor) in SIDES.into_iter().zip([a.clone(), b]) {
            tensors.push((format!("{ROOT}{}{side}", key.path), tensor));
        }
        modules.push(Written {
            layer: key.layer,
            module,
            tensor: key.tensor,
            rank: shape.rank,
        });
    }
    let name = of.str("general.name")?.unwrap_or_default();
    let config = written_config(adapter.alpha, &modules, model, name);
    files::write(path, &config, tensors)
}

/// A module whose adapter is written.
struct Written {
    layer: usize,
    module: &'static str,
    tensor: &'static str,
    rank: usize,
}

/// The `adapter_config.json` of these modules.
fn written_config(alpha: f32, modules: &[Written], model: &dyn Model, name: &str) -> Json {
    let rank = modules.iter().map(|m| m.rank).max().unwrap_or_default();
    let of_rank = |rank: usize| match alpha {
        0.0 => rank as f32,
        alpha => alpha,
    };
    let (mut ranks, mut alphas) = (Map::new(), Map::new());
    for m in modules.iter().filter(|m| m.rank != rank) {
        let key = format!("layers.{}.{}", m.layer, m.module);
        ranks.insert(key.clone(), json!(m.rank));
        if alpha == 0.0 {
            alphas.insert(key, json!(m.rank));
        }
    }
    // A module that only some blocks adapt is named with its block.
    let blocks = |tensor: &str| {
        let short = format!("{tensor}.weight");
        let of_model = model.tensors().iter().filter(|t| t.short == short);
        of_model.filter(|t| is_adaptable(t)).count()
    };
    let adapted = |tensor: &str| modules.iter().filter(|m| m.tensor == tensor).count();
    let target = |m: &Written| match adapted(m.tensor) == blocks(m.tensor) {
        true => m.module.to_owned(),
        false => format!("layers.{}.{}", m.layer, m.module),
    };
    let targets: BTreeSet<String> = modules.iter().map(target).collect();
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": name,
        "r": rank,
        "lora_alpha": of_rank(rank),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "use_rslora": false,
        "use_dora": false,
        "target_modules": targets,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `W x + B A x` by hand, for a matrix of rows.
    fn product(rows: &[f32], x: &[f32]) -> Vec<f32> {
        let of_row = |row: &[f32]| row.iter().zip(x).map(|(a, b)| a * b).sum();
        rows.chunks(x.len()).map(of_row).collect()
    }

    #[test]
    fn an_adapter_is_permuted_as_its_weight_is() {
        // Two heads of four rows, two inputs, rank 1. Hugging Face's rows 0 to 3 of a head are
        // GGUF's rows 0, 2, 1, 3.
        let w: Vec<f32> = (0..16).map(|i| (i * i % 7) as f32).collect();
        let (a, b): ([f32; 2], Vec<f32>) = ([0.5, -2.0], (1..=8).map(|i| i as f32).collect());
        let x = [3.0, 1.0];
        let low = product(&a, &x);
        let y: Vec<f32> = product(&w, &x)
            .iter()
            .zip(product(&b, &low))
            .map(|(w, b)| w + b)
            .collect();
        let to = |v: &[f32], width| permuted(v, width, 2, Direction::ToGguf).unwrap();
        assert_eq!(to(&b, 1), [1.0, 3.0, 2.0, 4.0, 5.0, 7.0, 6.0, 8.0]);
        let ours = product(&to(&w, 2), &x);
        let ours: Vec<f32> = ours
            .iter()
            .zip(product(&to(&b, 1), &low))
            .map(|(w, b)| w + b)
            .collect();
        assert_eq!(ours, to(&y, 1));
        assert_ne!(ours, y);
        let back = permuted(&to(&w, 2), 2, 2, Direction::FromGguf).unwrap();
        assert_eq!(back, w);
        assert!(permuted(&b, 1, 3, Direction::ToGguf).is_err());
        assert!(permuted(&b, 1, 0, Direction::ToGguf).is_err());
    }

    #[test]
    fn every_tensor_has_one_written_module() {
        let written = |weight: &str, of: &str| Key::of_weight(weight, of).map(|(key, _)| key.path);
        assert_eq!(
            written("blk.3.ffn_up.weight", "phi3").unwrap(),
            "model.layers.3.mlp.gate_up_proj"
        );
        assert_eq!(
            written("blk.0.ffn_up.weight", "llama").unwrap(),
            "model.layers.0.mlp.up_proj"
        );
        assert_eq!(
            written("blk.1.ffn_down_shexp.weight", "qwen35moe").unwrap(),
            "model.layers.1.mlp.shared_expert.down_proj"
        );
        for weight in [
            "blk.1.ffn_up_exps.weight",
            "blk.1.ffn_gate_inp.weight",
            "output.weight",
        ] {
            assert_eq!(written(weight, "deepseek2"), None, "{weight}");
        }
    }
}
