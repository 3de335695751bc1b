//! Tensors of the converted model: which tensors of the checkpoint each is made of.

use super::checkpoint::Checkpoint;
use super::config::CheckpointConfig;
use super::error::ConvertError;
use super::family::{ConvertFamily, ShiftedNorms};
use super::heads::Heads;
use super::named::Named;
use super::names::{CLUSTERS, find};
use super::tensor::{Change, ConvertedTensor, Data, Matrix, Picks, encoding_of};
use gristmill_encodings::by_name;
use gristmill_uop::encoding::EncodingRef;
use safetensors::tensor::Dtype;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Result<T = ()> = std::result::Result<T, ConvertError>;

/// Suffix of the scales of a weight in 8-bit floats.
const SCALES: &str = "_scale_inv";
/// Ends of the names of scales of activations, which are no part of a model.
const ACTIVATION_SCALES: [&str; 3] = [".input_scale", "activation_scale", ".k_scale"];
/// Parts of the names of matrices that stay in f32: small ones on which much depends.
const PRECISE: [&str; 5] = [
    "_norm.weight",
    "ffn_gate_inp",
    "ssm_conv1d",
    "position_embd",
    "token_types",
];
/// Name of the output head.
const HEAD: &str = "output.weight";

/// Tensors of a conversion.
pub(super) struct PlannedTensors {
    pub tensors: Vec<ConvertedTensor>,
    /// Number of blocks, with those for draft tokens.
    pub blocks: usize,
    /// Name of the type of the checkpoint's first matrix.
    pub source_type: &'static str,
}

/// Position of a tensor in the file: layer, or that of globals, and name.
type TensorPlace = (usize, String);

/// Plans the tensors of a checkpoint.
pub(super) struct Planner<'c> {
    from: &'c Arc<Checkpoint>,
    config: &'c CheckpointConfig,
    family: &'c ConvertFamily,
    heads: Heads,
    layers: usize,
    /// Rows and columns of a block of 8-bit floats with one scale, if the checkpoint has such.
    block: Option<[usize; 2]>,
    planned: BTreeMap<TensorPlace, ConvertedTensor>,
    /// Tensor of each expert, by layer and name of the stack.
    experts: BTreeMap<(usize, &'static str), BTreeMap<usize, String>>,
}

impl<'c> Planner<'c> {
    pub fn new(
        from: &'c Arc<Checkpoint>,
        config: &'c CheckpointConfig,
        family: &'c ConvertFamily,
    ) -> Result<Planner<'c>> {
        Ok(Planner {
            from,
            config,
            family,
            heads: Heads::new(config, family.architecture)?,
            layers: config.layers()? as usize,
            block: scale_block(config)?,
            planned: BTreeMap::new(),
            experts: BTreeMap::new(),
        })
    }
    /// Plans all tensors; `further` are those that follow from the configuration.
    pub fn plan(mut self, further: Vec<(&'static str, Vec<f32>)>) -> Result<PlannedTensors> {
        let names: Vec<String> = self.from.names().map(str::to_owned).collect();
        for name in &names {
            self.add(name)?;
        }
        for ((layer, name), of) in std::mem::take(&mut self.experts) {
            self.stack(layer, name, &of)?;
        }
        for (name, numbers) in further {
            let dims = vec![numbers.len() as u64];
            self.insert((0, name.into()), dims, Data::Numbers(numbers), Dtype::F32)?;
        }
        let last = self.planned.keys().next_back().map_or(0, |place| place.0);
        let matrices = names.iter().filter_map(|name| self.from.info(name));
        let first = matrices.into_iter().find(|info| info.shape.len() > 1);
        let first = first.and_then(|info| encoding_of(info.dtype));
        Ok(PlannedTensors {
            tensors: self.planned.into_values().collect(),
            blocks: last.max(self.layers),
            source_type: first.unwrap_or("f32"),
        })
    }
    fn add(&mut self, name: &str) -> Result {
        let is_scale = name.ends_with(SCALES) || name.ends_with("_scales");
        let is_activation = ACTIVATION_SCALES.iter().any(|end| name.ends_with(end));
        if is_activation || is_scale && !name.contains("norm") {
            return Ok(());
        }
        let is_beyond = |layer: usize| !self.family.drafts && layer >= self.layers;
        match find(name, self.family.architecture, self.layers) {
            Named::Skipped => Ok(()),
            Named::Unknown => Err(ConvertError::tensor(
                name,
                format!(
                    "no tensor of {} models has that name",
                    self.family.architecture
                ),
            )),
            Named::One {
                layer: Some(layer), ..
            }
            | Named::Expert { layer, .. }
            | Named::Experts { layer, .. }
                if is_beyond(layer) =>
            {
                Ok(())
            }
            Named::One {
                layer: None,
                name: to,
            } if to == HEAD && self.is_tied()? => Ok(()),
            Named::One { layer, name: to } => self.one(name, layer, to),
            Named::Expert {
                layer,
                expert,
                name: to,
            } => {
                let of = self.experts.entry((layer, to)).or_default();
                match of.insert(expert, name.to_owned()) {
                    None => Ok(()),
                    Some(_) => Err(ConvertError::tensor(name, "a second tensor of that expert")),
                }
            }
            Named::Experts { layer, name: part } => self.all_experts(name, layer, &part),
        }
    }
    /// Whether the embedding is the output head too.
    fn is_tied(&self) -> Result<bool> {
        let is_gemma = self.family.architecture.starts_with("gemma");
        Ok(is_gemma || self.config.flag("tie_word_embeddings")?)
    }
    /// The whole tensor of a name, with its scales.
    fn matrix(&self, name: &str) -> Result<Matrix> {
        let source = self.from.matrix(name)?;
        let scales = format!("{name}{SCALES}");
        let scales = match self.from.info(&scales) {
            Some(_) => Some(self.from.matrix(&scales)?),
            None if source.dtype == Dtype::F8_E4M3 => {
                return Err(ConvertError::tensor(
                    name,
                    "its scales (weight_scale_inv) are missing",
                ));
            }
            None => None,
        };
        let whole = [source.rows, source.columns];
        let mut matrix = Matrix::whole(source);
        matrix.scales = scales.map(|scales| {
            let of_all = scales.rows == 1 && scales.columns == 1;
            (scales, self.block.filter(|_| !of_all).unwrap_or(whole))
        });
        Ok(matrix)
    }
    /// Sizes of a tensor, the contiguous one first.
    fn dims(&self, name: &str) -> Vec<u64> {
        let info = self.from.info(name);
        let shape = info.map(|info| &info.shape[..]).unwrap_or_default();
        shape.iter().rev().map(|&n| n as u64).collect()
    }
    /// Plans a tensor of one tensor, or of two for the keys and values of latent attention.
    fn one(&mut self, name: &str, layer: Option<usize>, to: String) -> Result {
        if to == CLUSTERS {
            return self.ids(name, to);
        }
        let mut matrix = self.matrix(name)?;
        let (mut dims, dtype) = (self.dims(name), matrix.source.dtype);
        let prefix = layer.map_or(String::new(), |layer| format!("blk.{layer}."));
        let place = |to: &str| (layer.map_or(0, |layer| layer + 1), format!("{prefix}{to}"));
        if to == "attn_kv_b.weight" {
            for (to, dims, matrices) in self.heads.latent(&matrix)? {
                self.insert(place(to), dims, Data::Matrices(matrices, Change::No), dtype)?;
            }
            return Ok(());
        }
        if to == "ssm_conv1d.weight" && dims.len() == 3 && dims[1] == 1 {
            dims.remove(1);
        }
        if dims.is_empty() {
            dims = vec![1];
        }
        if let Some(picks) = self.heads.order(&to, &matrix.source)? {
            match matrix.source.rows == 1 || to == "ssm_out.weight" {
                true => matrix.columns = picks,
                false => matrix.rows = picks,
            }
        }
        let is_norm = to.ends_with("norm.weight");
        let change = match self.family.norms {
            ShiftedNorms::All if is_norm => Change::AddOne,
            ShiftedNorms::ButGated if is_norm && to != "ssm_norm.weight" => Change::AddOne,
            _ if to == "ssm_a" => Change::NegatedExp,
            _ => Change::No,
        };
        self.insert(
            place(&to),
            dims,
            Data::Matrices(vec![matrix], change),
            dtype,
        )
    }
    /// Plans a list of token ids.
    fn ids(&mut self, name: &str, to: String) -> Result {
        let (dims, ids) = (self.dims(name), self.from.integers(name)?);
        let numbers = ids.iter().map(|&id| id as f32).collect();
        self.insert((0, to), dims, Data::Numbers(numbers), Dtype::I32)
    }
    /// Plans the stack of single experts.
    fn stack(&mut self, layer: usize, to: &str, of: &BTreeMap<usize, String>) -> Result {
        let count = self
            .config
            .need(&["num_local_experts", "num_experts", "n_routed_experts"])?;
        let Some((_, first)) = of.iter().next() else {
            return Ok(());
        };
        let numbers: BTreeSet<usize> = of.keys().copied().collect();
        let is_whole =
            numbers.len() == count as usize && numbers.last() == Some(&(numbers.len() - 1));
        if !is_whole {
            let problem = format!("{} of {count} experts are there", numbers.len());
            return Err(ConvertError::tensor(first, problem));
        }
        let matrices = of
            .values()
            .map(|name| self.matrix(name))
            .collect::<Result<Vec<_>>>()?;
        let dtype = matrices[0].source.dtype;
        let other = matrices
            .iter()
            .find(|m| m.shape() != matrices[0].shape() || m.source.dtype != dtype);
        if let Some(other) = other {
            let problem = "its shape or type is not that of the other experts";
            return Err(ConvertError::tensor(&other.source.name, problem));
        }
        let mut dims = self.dims(first);
        dims.push(u64::from(count));
        let place = (layer + 1, format!("blk.{layer}.{to}.weight"));
        self.insert(place, dims, Data::Matrices(matrices, Change::No), dtype)
    }
    /// Plans tensors of a tensor of all experts.
    fn all_experts(&mut self, name: &str, layer: usize, part: &str) -> Result {
        let is_oss = self.family.architecture == "gpt-oss";
        let place = |to: &str| (layer + 1, format!("blk.{layer}.{to}"));
        let shape = self.from.info(name).map(|info| info.shape.clone());
        let shape = shape.unwrap_or_default();
        if part.ends_with("_blocks") {
            return self.packed(name, &shape, part, place);
        }
        let matrix = self.matrix(name)?;
        let dtype = matrix.source.dtype;
        let whole = |to: &str, dims: Vec<u64>, matrices| {
            (place(to), dims, Data::Matrices(matrices, Change::No))
        };
        let made = match (part, &shape[..]) {
            ("gate_up_proj_bias", &[experts, both]) => {
                let halves = [("ffn_gate_exps.bias", 0), ("ffn_up_exps.bias", 1)];
                let made = halves.map(|(to, begin)| {
                    let mut matrix = matrix.clone();
                    matrix.columns = every_other(begin, both);
                    whole(to, vec![both as u64 / 2, experts as u64], vec![matrix])
                });
                made.into()
            }
            ("down_proj_bias", &[_, _]) => {
                vec![whole("ffn_down_exps.bias", self.dims(name), vec![matrix])]
            }
            ("gate_up_proj", &[experts, rows, columns]) if is_oss => {
                let halves = [("ffn_gate_exps.weight", 0), ("ffn_up_exps.weight", 1)];
                let made = halves.map(|(to, begin)| {
                    let picks = every_other(begin, columns);
                    let dims = [rows, columns / 2, experts].map(|n| n as u64);
                    whole(to, dims.into(), transposed(&matrix, experts, rows, &picks))
                });
                made.into()
            }
            ("down_proj", &[experts, rows, columns]) if is_oss => {
                let dims = [rows, columns, experts].map(|n| n as u64);
                let matrices = transposed(&matrix, experts, rows, &Picks::all(columns));
                vec![whole("ffn_down_exps.weight", dims.into(), matrices)]
            }
            ("gate_up_proj", &[_, _, _]) if self.family.architecture == "gemma4" => {
                vec![whole(
                    "ffn_gate_up_exps.weight",
                    self.dims(name),
                    vec![matrix],
                )]
            }
            ("gate_up_proj", &[experts, both, columns]) => {
                let half = both / 2;
                let halves = [("ffn_gate_exps.weight", 0), ("ffn_up_exps.weight", half)];
                let made = halves.map(|(to, begin)| {
                    let of = |expert: usize| {
                        let begin = expert * both + begin;
                        let mut matrix = matrix.clone();
                        matrix.rows = Picks::range(begin..begin + half);
                        matrix
                    };
                    let dims = [columns, half, experts].map(|n| n as u64);
                    whole(to, dims.into(), (0..experts).map(of).collect())
                });
                made.into()
            }
            ("down_proj", &[_, _, _]) => {
                vec![whole("ffn_down_exps.weight", self.dims(name), vec![matrix])]
            }
            _ => {
                let problem = format!("shape {shape:?} of {part} is not known");
                return Err(ConvertError::tensor(name, problem));
            }
        };
        for (place, dims, data) in made {
            self.insert(place, dims, data, dtype)?;
        }
        Ok(())
    }
    /// Plans tensors of MXFP4 blocks and their scales.
    fn packed(
        &mut self,
        name: &str,
        shape: &[usize],
        part: &str,
        place: impl Fn(&str) -> TensorPlace,
    ) -> Result {
        let &[experts, rows, blocks, 16] = shape else {
            let problem = format!("shape {shape:?} is not that of MXFP4 blocks");
            return Err(ConvertError::tensor(name, problem));
        };
        let scales = name.replace("_blocks", "_scales");
        let sources = [self.from.matrix(name)?, self.from.matrix(&scales)?];
        let parts: &[(&str, usize, usize)] = match part {
            "gate_up_proj_blocks" => {
                &[("ffn_gate_exps.weight", 0, 2), ("ffn_up_exps.weight", 1, 2)]
            }
            "down_proj_blocks" => &[("ffn_down_exps.weight", 0, 1)],
            _ => return Err(ConvertError::tensor(name, "blocks of no known matrix")),
        };
        for &(to, begin, step) in parts {
            let count = rows / step;
            let picks = |expert: usize| Picks::Range {
                begin: expert * rows + begin,
                step,
                count,
            };
            let dims = [blocks * 32, count, experts].map(|n| n as u64);
            let data = Data::Packed(sources.clone(), (0..experts).map(picks).collect());
            self.insert(place(to), dims.into(), data, Dtype::U8)?;
        }
        Ok(())
    }
    fn insert(&mut self, place: TensorPlace, dims: Vec<u64>, data: Data, dtype: Dtype) -> Result {
        let name = place.1.clone();
        let encoding = stored(&name, &dims, &data, dtype);
        let tensor = ConvertedTensor::new(name.clone(), dims, encoding, data, self.from)?;
        match self.planned.insert(place, tensor) {
            None => Ok(()),
            Some(_) => Err(ConvertError::tensor(
                &name,
                "two tensors of the checkpoint are it",
            )),
        }
    }
}

/// Every second column from `begin` on.
fn every_other(begin: usize, columns: usize) -> Picks {
    Picks::Range {
        begin,
        step: 2,
        count: columns / 2,
    }
}

/// Transposed matrices of `rows` rows each.
fn transposed(matrix: &Matrix, experts: usize, rows: usize, columns: &Picks) -> Vec<Matrix> {
    let of = |expert: usize| Matrix {
        rows: Picks::range(expert * rows..(expert + 1) * rows),
        columns: columns.clone(),
        transposed: true,
        ..matrix.clone()
    };
    (0..experts).map(of).collect()
}

/// Encoding in which a tensor is read: that of the checkpoint where nothing changes its numbers.
fn stored(name: &str, dims: &[u64], data: &Data, dtype: Dtype) -> EncodingRef {
    let is_matrix = dims.len() > 1 && name.ends_with(".weight");
    let is_precise = !is_matrix || PRECISE.iter().any(|part| name.contains(part));
    let encoding = match data {
        Data::Packed(..) => Some("mxfp4"),
        _ if name == CLUSTERS => Some("i32"),
        _ if is_precise => None,
        Data::Matrices(_, Change::No) => encoding_of(dtype),
        _ => None,
    };
    by_name(encoding.unwrap_or("f32"))
        .expect("the table of encodings has floats, integers and MXFP4")
}

/// Size of the blocks of 8-bit floats that have one scale.
fn scale_block(config: &CheckpointConfig) -> Result<Option<[usize; 2]>> {
    let of = config.object("quantization_config")?;
    let Some(method) = of.get("quant_method") else {
        return Ok(None);
    };
    let sizes = of
        .get("weight_block_size")
        .and_then(|sizes| sizes.as_array());
    match method.as_str() {
        Some("mxfp4") => Ok(None),
        Some("fp8") => {
            let Some(sizes) = sizes else { return Ok(None) };
            let sizes: Vec<usize> = sizes
                .iter()
                .filter_map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok()))
                .collect();
            match sizes[..] {
                [rows, columns] if rows > 0 && columns > 0 => Ok(Some([rows, columns])),
                _ => Err(ConvertError::malformed(
                    "config.json",
                    "weight_block_size is no list of two sizes",
                )),
            }
        }
        _ => Err(ConvertError::unsupported(
            format!("quant_method {method}"),
            "convert the checkpoint that is not quantised, and give --type; fp8 and mxfp4 are read",
        )),
    }
}
