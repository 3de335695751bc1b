//! Low-rank adapters as GGUF files, in the layout that llama.cpp loads.
//!
//! `general.type` is `adapter`, `adapter.type` is `lora`. A weight `W [.., out, in]` has tensors
//! `W.lora_a [.., rank, in]` and `W.lora_b [.., out, rank]` (row-major, with a leading axis of
//! experts), and adds `alpha/rank · B (A x)`; an alpha of 0 or none means a factor of 1.

use super::parameters::Places;
use crate::arch::{LowRank, LowRankShape, Model, TensorSpec};
use crate::gguf::{self, Gguf, Metadata, Role, TensorDecl, TensorInfo, Writer};
use crate::sampling::{PositionRng, RANDOM_BITS};
use gristmill_tensor::evaluate;
use gristmill_uop::encoding::EncodingRef;
use std::collections::BTreeMap;
use std::io::Write;

/// Metadata keys of an adapter.
const KIND: &str = "general.type";
const ARCHITECTURE: &str = "general.architecture";
const ADAPTER: &str = "adapter.type";
const ALPHA: &str = "adapter.lora.alpha";
/// Values of the first and the third.
const IS_ADAPTER: &str = "adapter";
const IS_LORA: &str = "lora";

/// Suffixes of the two matrices.
const SIDES: [&str; 2] = [".lora_a", ".lora_b"];

/// Linear maps of blocks that no adapter changes: per-head matrices of latent attention, which
/// kernels absorb into queries and outputs.
const NEVER: [&str; 3] = ["attn_k_b.", "attn_v_b.", "attn_kv_b."];
/// Weights of latent attention whose adapters llama.cpp loads and ignores.
const NOT_PORTABLE: [&str; 4] = ["attn_q.", "attn_q_a.", "attn_q_b.", "attn_kv_a_mqa."];

/// An error of reading an adapter.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// The file cannot be read or is malformed.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The file is a GGUF file of another kind.
    #[error("the file is no LoRA adapter: {0}")]
    Kind(String),
    /// The adapter is of another model.
    #[error("the adapter is of a {adapter} model, not of {model}")]
    Architecture {
        /// Architecture that the adapter names.
        adapter: String,
        /// Architecture of the model.
        model: String,
    },
    /// A file operation failed.
    #[error("cannot {0} {1}: {2}")]
    Io(&'static str, String, std::io::Error),
    /// An adapter in the layout of PEFT is malformed, or of a kind that is not supported.
    #[error("{0}")]
    Peft(String),
    /// A tensor does not fit the model.
    #[error("{name}: {problem}")]
    Tensor {
        /// Name of the tensor in the adapter.
        name: String,
        /// What does not fit.
        problem: String,
    },
}

/// Which weights get an adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Targets {
    /// Every linear layer of every block, experts included; not the router.
    All,
    /// Those of `All` that llama.cpp applies adapters to.
    Portable,
    /// Weights whose names contain one of these texts.
    Names(Vec<String>),
}

impl Targets {
    /// Names of the weights of a model that get an adapter, in file order.
    pub fn choose(&self, model: &dyn Model) -> Vec<String> {
        let latent = model
            .tensors()
            .iter()
            .any(|t| t.short == "attn_kv_a_mqa.weight");
        let is_chosen = |t: &&TensorSpec| match self {
            Targets::All => true,
            Targets::Portable => !(latent && starts_with_any(t, &NOT_PORTABLE)),
            Targets::Names(names) => names.iter().any(|name| t.name.contains(name.as_str())),
        };
        let adaptable = model.tensors().iter().filter(|t| is_adaptable(t));
        adaptable
            .filter(is_chosen)
            .map(|t| t.name.clone())
            .collect()
    }
}

fn starts_with_any(t: &TensorSpec, starts: &[&str]) -> bool {
    starts.iter().any(|start| t.short.starts_with(start))
}

/// Returns true for weights of linear layers of blocks.
pub(super) fn is_adaptable(t: &TensorSpec) -> bool {
    let linear = matches!(
        t.role,
        Role::Matrix | Role::Down(_) | Role::Experts | Role::ExpertsDown(_)
    );
    linear && t.layer.is_some() && t.dims.len() > 1 && !starts_with_any(t, &NEVER)
}

/// Names among these weights whose adapters llama.cpp ignores without a word.
pub fn ignored_elsewhere<'a>(model: &dyn Model, weights: &'a [String]) -> Vec<&'a str> {
    let portable = Targets::Portable.choose(model);
    let is_ignored = |name: &&String| !portable.contains(name);
    weights
        .iter()
        .filter(is_ignored)
        .map(String::as_str)
        .collect()
}

/// One matrix of an adapter.
#[derive(Clone, PartialEq, Debug)]
pub struct AdapterTensor {
    /// Row-major dims, the contiguous one last.
    pub dims: Vec<usize>,
    /// Elements in row-major order.
    pub values: Vec<f32>,
}

/// An adapter in host memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Adapter {
    /// `general.architecture` of its model.
    pub architecture: String,
    /// Numerator of the factor `alpha / rank`; 0 for a factor of 1.
    pub alpha: f32,
    /// Matrices by name: a weight's name and `.lora_a` or `.lora_b`.
    pub tensors: BTreeMap<String, AdapterTensor>,
}

impl Adapter {
    /// Reads an adapter of `model`.
    ///
    /// # Errors
    /// When the file is malformed, no adapter, or does not fit the model.
    pub fn read(file: &Gguf, model: &dyn Model) -> Result<Adapter, AdapterError> {
        let alpha = Adapter::check_file(file, model)?;
        let mut tensors = BTreeMap::new();
        for info in file.tensors() {
            let mut bytes = vec![0; info.bytes as usize];
            file.read_tensor(info, &mut bytes)?;
            let values = evaluate::decode(info.encoding, &bytes);
            let tensor = AdapterTensor {
                dims: row_major(info),
                values: values.into_iter().map(|v| v as f32).collect(),
            };
            tensors.insert(info.name.clone(), tensor);
        }
        Ok(Adapter {
            architecture: model.architecture().into(),
            alpha,
            tensors,
        })
    }
    /// Checks that the file is an adapter of `model`: every matrix belongs to a linear layer and
    /// has a partner. Returns its alpha.
    ///
    /// # Errors
    /// When the file is no adapter, or does not fit the model.
    pub fn check_file(file: &Gguf, model: &dyn Model) -> Result<f32, AdapterError> {
        let metadata = file.metadata();
        for (key, expected) in [(KIND, IS_ADAPTER), (ADAPTER, IS_LORA)] {
            let found = metadata.str(key)?.unwrap_or("not given");
            if found != expected {
                return Err(AdapterError::Kind(format!("its {key} is {found}")));
            }
        }
        let adapter = metadata.str(ARCHITECTURE)?.unwrap_or_default().to_owned();
        if adapter != model.architecture() {
            let model = model.architecture().into();
            return Err(AdapterError::Architecture { adapter, model });
        }
        let adaptable: BTreeMap<&str, &TensorSpec> = model
            .tensors()
            .iter()
            .filter(|t| is_adaptable(t))
            .map(|t| (t.name.as_str(), t))
            .collect();
        for info in file.tensors() {
            check_matrix(file, info, &adaptable).map_err(|problem| AdapterError::Tensor {
                name: info.name.clone(),
                problem,
            })?;
        }
        let alpha = metadata.f32(ALPHA)?.unwrap_or_default();
        match alpha.is_finite() {
            true => Ok(alpha),
            false => Err(AdapterError::Kind(format!("its {ALPHA} is {alpha}"))),
        }
    }
    /// Names of the adapted weights.
    pub(super) fn weights(&self) -> impl Iterator<Item = &str> {
        let names = self.tensors.keys();
        names.filter_map(|name| name.strip_suffix(SIDES[0]))
    }
    /// Factor of the adapter of a weight.
    pub(super) fn scale_of(&self, weight: &str) -> f32 {
        let rank = self.rank_of(weight).unwrap_or(1);
        LowRankShape::new(rank, self.alpha).scale
    }
    fn rank_of(&self, weight: &str) -> Option<usize> {
        let a = self.tensors.get(&LowRank::matrices(weight)[0])?;
        a.dims.iter().rev().nth(1).copied()
    }
    /// Shapes and factors of the adapters by weight.
    pub fn low_rank(&self) -> LowRank {
        let weights = self
            .tensors
            .keys()
            .filter_map(|name| name.strip_suffix(SIDES[0]));
        let shape = |weight: &str| {
            let shape = LowRankShape::new(self.rank_of(weight)?, self.alpha);
            Some((weight.to_owned(), shape))
        };
        LowRank {
            shapes: weights.filter_map(shape).collect(),
        }
    }
    /// Creates an adapter from trained parameters.
    pub fn from_parameters(
        architecture: &str,
        alpha: f32,
        places: &Places,
        values: &[f32],
    ) -> Adapter {
        let tensor = |(name, place): (&str, &super::Place)| {
            let tensor = AdapterTensor {
                dims: place.dims.clone(),
                values: values[place.range.clone()].to_vec(),
            };
            (name.to_owned(), tensor)
        };
        Adapter {
            architecture: architecture.into(),
            alpha,
            tensors: places.iter().map(tensor).collect(),
        }
    }
    /// The adapter as a GGUF file in memory.
    ///
    /// # Errors
    /// When a matrix has no elements, or the adapter cannot be declared as a file.
    pub fn to_file(&self) -> Result<Gguf, AdapterError> {
        let mut bytes = Vec::new();
        self.write(&mut bytes)?;
        Ok(Gguf::from_bytes(bytes)?)
    }
    /// Writes the adapter as a GGUF file.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn write(&self, out: impl Write) -> gguf::Result<()> {
        let mut metadata = Metadata::new();
        metadata
            .insert(KIND, IS_ADAPTER)
            .insert(ARCHITECTURE, self.architecture.as_str())
            .insert(ADAPTER, IS_LORA)
            .insert(ALPHA, self.alpha);
        let dims: Vec<Vec<u64>> = self
            .tensors
            .values()
            .map(|t| t.dims.iter().rev().map(|&d| d as u64).collect())
            .collect();
        let encoding: EncodingRef = &gristmill_encodings::F32;
        let declared: Vec<TensorDecl<'_>> = self
            .tensors
            .keys()
            .zip(&dims)
            .map(|(name, dims)| TensorDecl {
                name,
                dims,
                encoding,
            })
            .collect();
        let mut writer = Writer::new(out, &metadata, &declared)?;
        for tensor in self.tensors.values() {
            writer.data(bytemuck::cast_slice(&tensor.values))?;
        }
        writer.finish()?;
        Ok(())
    }
}

/// Dims of a tensor in row-major order.
fn row_major(info: &TensorInfo) -> Vec<usize> {
    info.dims.iter().rev().map(|&d| d as usize).collect()
}

/// Returns what is wrong with a matrix of an adapter.
fn check_matrix(
    file: &Gguf,
    info: &TensorInfo,
    adaptable: &BTreeMap<&str, &TensorSpec>,
) -> Result<(), String> {
    let sides = SIDES.iter().enumerate();
    let of_side = |(i, side): (usize, &&str)| Some((info.name.strip_suffix(*side)?, i));
    let Some((weight, side)) = sides.into_iter().find_map(of_side) else {
        return Err("not the name of an adapter's matrix".into());
    };
    let Some(spec) = adaptable.get(weight) else {
        return Err("the model has no such linear layer".into());
    };
    let [a, b] = SIDES.map(|side| file.tensor(&format!("{weight}{side}")).map(row_major));
    let (Some(a), Some(b)) = (a, b) else {
        return Err(format!("{weight}{} is missing", SIDES[1 - side]));
    };
    let rank = a.iter().rev().nth(1).copied().unwrap_or_default();
    let [front @ .., out, width] = &spec.dims[..] else {
        unreachable!("a linear layer has two axes")
    };
    let last = [[rank, *width], [*out, rank]][side];
    let expected: Vec<usize> = front.iter().copied().chain(last).collect();
    let found = if side == 0 { a } else { b };
    match found == expected && rank > 0 {
        true => Ok(()),
        false => Err(format!("it is {found:?}, expected {expected:?}")),
    }
}

/// Creates an adapter that changes nothing yet: `A` is uniform in `±1/√in`, `B` is zero (as PEFT
/// begins). The same seed gives the same numbers on every machine.
pub fn initial_adapter(
    model: &dyn Model,
    weights: &[String],
    rank: usize,
    alpha: f32,
    seed: u64,
) -> Adapter {
    let random = PositionRng::new(seed);
    let mut drawn = 0;
    let mut tensors = BTreeMap::new();
    let chosen = model.tensors().iter().filter(|t| weights.contains(&t.name));
    for spec in chosen {
        let [front @ .., out, width] = &spec.dims[..] else {
            continue;
        };
        let side = |last: [usize; 2], value: &mut dyn FnMut() -> f32| {
            let dims: Vec<usize> = front.iter().copied().chain(last).collect();
            let values = (0..dims.iter().product()).map(|_| value()).collect();
            AdapterTensor { dims, values }
        };
        let bound = 1.0 / (*width as f32).sqrt();
        let [a, b] = LowRank::matrices(&spec.name);
        let mut uniform = || {
            drawn += 1;
            let part = random.at(drawn) as f32 / (1u32 << RANDOM_BITS) as f32;
            (2.0 * part - 1.0) * bound
        };
        tensors.insert(a, side([rank, *width], &mut uniform));
        tensors.insert(b, side([*out, rank], &mut || 0.0));
    }
    Adapter {
        architecture: model.architecture().into(),
        alpha,
        tensors,
    }
}
