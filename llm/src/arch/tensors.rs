//! Tensor table of a model, with the dims required by its hyper-parameters. The loader checks files
//! against it, `synth` generates its tensors, and tests are built from it.

use super::{Error, Result, Tensors};
use crate::gguf::Role;
use gristmill_uop::encoding::EncodingRef;
use std::borrow::Cow;
use std::collections::HashMap;

/// A tensor in a model's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Full name in the file.
    pub name: String,
    /// Name without the block prefix.
    pub short: Cow<'static, str>,
    /// Block index; `None` for tensors outside blocks.
    pub layer: Option<usize>,
    /// Row-major dims: rows first, elements of a row last.
    pub dims: Vec<usize>,
    /// Purpose of the tensor, which decides its quantisation.
    pub role: Role,
}

/// Builder of a tensor table. Optional tensors are listed only if the source has them.
pub(super) struct TensorTable<'a> {
    there: &'a dyn Tensors,
    layer: Option<usize>,
    list: Vec<TensorSpec>,
}

impl<'a> TensorTable<'a> {
    /// Creates an empty table.
    pub fn new(there: &'a dyn Tensors) -> TensorTable<'a> {
        TensorTable {
            there,
            layer: None,
            list: Vec::new(),
        }
    }
    /// Begins tensors outside blocks.
    pub fn globals(&mut self) {
        self.layer = None;
    }
    /// Sets the block of the tensors that follow.
    pub fn block(&mut self, layer: usize) {
        self.layer = Some(layer);
    }
    fn name(&self, short: &str) -> String {
        self.layer
            .map_or(short.into(), |l| format!("blk.{l}.{short}"))
    }
    /// Returns true if the source has this tensor in the current block.
    pub fn has(&self, short: &str) -> bool {
        self.there.find(&self.name(short)).is_some()
    }
    /// Lists a required tensor. If the source has a scale for it, one for a matrix or one per
    /// expert, lists that too.
    pub fn need(&mut self, short: &'static str, role: Role, dims: &[usize]) {
        self.list(short.into(), role, dims);
        let numbers = match (role, dims) {
            (Role::Matrix | Role::Down(_), [_, _]) if self.layer.is_some() => 1,
            (Role::Output, _) if short == "output.weight" => 1,
            (Role::Experts, &[experts, ..]) => experts,
            _ => return,
        };
        let scale = scale_of(short).expect("matrices are weights");
        if self.has(&scale) {
            self.list(scale.into(), Role::Norm, &[numbers]);
        }
    }
    fn list(&mut self, short: Cow<'static, str>, role: Role, dims: &[usize]) {
        let (name, layer) = (self.name(&short), self.layer);
        self.list.push(TensorSpec {
            name,
            short,
            layer,
            dims: dims.into(),
            role,
        });
    }
    /// Lists a tensor if the source has it.
    pub fn optional(&mut self, short: &'static str, role: Role, dims: &[usize]) {
        if self.has(short) {
            self.need(short, role, dims);
        }
    }
    /// Lists embedding, output norm and head for hidden width `d`. Without a head
    /// the embedding is tied.
    pub fn embed_and_head(&mut self, vocabulary: usize, d: usize) {
        let tied = !self.has("output.weight");
        let embedding = if tied { Role::Output } else { Role::Matrix };
        self.need("token_embd.weight", embedding, &[vocabulary, d]);
        self.need("output_norm.weight", Role::Norm, &[d]);
        self.optional("output.weight", Role::Output, &[vocabulary, d]);
    }
    /// Returns the role of a down projection of the current block.
    pub fn down(&self) -> Role {
        Role::Down(self.layer.unwrap_or(0) as u64)
    }
    /// Returns the finished table.
    pub fn finish(self) -> Vec<TensorSpec> {
        self.list
    }
}

/// Returns the name of the scale tensor of a weight; `None` unless it ends in `.weight`.
pub(super) fn scale_of(weight: &str) -> Option<String> {
    weight
        .strip_suffix(".weight")
        .map(|stem| format!("{stem}.scale"))
}

/// Returns the name of the scale that multiplies the product of a weight before adapters are added
/// to it. The scale of experts' down projections without a bias is not one: it multiplies the
/// routing weights, and so adapters too.
pub(crate) fn scale_under_adapters(table: &[TensorSpec], weight: &TensorSpec) -> Option<String> {
    let has = |name: &String| table.iter().any(|t| t.name == *name);
    let scale = scale_of(&weight.name).filter(has)?;
    let stem = scale.strip_suffix(".scale")?;
    let is_folded = stem.ends_with("ffn_down_exps") && !has(&format!("{stem}.bias"));
    (!is_folded).then_some(scale)
}

/// A weight tensor of a loaded model.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct WeightInfo {
    /// Full name in the file.
    pub name: String,
    /// Row-major dims: rows first, elements of a row last.
    pub dims: Vec<usize>,
    pub encoding: EncodingRef,
}

/// Tensors of one block, or those outside blocks, by name without the block prefix.
#[derive(Clone, Default, Debug)]
pub(super) struct LayerWeights(HashMap<Cow<'static, str>, WeightInfo>);

impl LayerWeights {
    /// Returns the tensor named `name`. Panics if it is not in the table.
    pub fn get(&self, name: &str) -> &WeightInfo {
        self.0
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in the table of tensors"))
    }
    /// Returns true if the tensor is in the table.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// Tensors of a model, found in a file and checked against its table.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    pub table: Vec<TensorSpec>,
    pub globals: LayerWeights,
    pub blocks: Vec<LayerWeights>,
}

impl Checked {
    /// Looks up every tensor of the table for a model of `layers` layers. Ignores other
    /// tensors of the file.
    ///
    /// # Errors
    /// Returns an error if a tensor is missing, has other dims, or has an unsupported scale.
    pub fn new(table: Vec<TensorSpec>, layers: usize, tensors: &dyn Tensors) -> Result<Checked> {
        let last = table.iter().filter_map(|spec| spec.layer).max();
        let count = last.map_or(0, |last| last + 1).max(layers);
        let (mut globals, mut blocks) = (
            LayerWeights::default(),
            vec![LayerWeights::default(); count],
        );
        for spec in &table {
            let found = tensors.find(&spec.name);
            let (found, encoding) = found.ok_or_else(|| Error::MissingTensor(spec.name.clone()))?;
            let expected: Vec<u64> = spec.dims.iter().rev().map(|&d| d as u64).collect();
            // Trailing axes of length 1 are insignificant.
            let trim = |d: &[u64]| d.iter().rposition(|&n| n != 1).map_or(0, |i| i + 1);
            if found[..trim(&found)] != expected[..trim(&expected)] {
                return Err(Error::Shape {
                    tensor: spec.name.clone(),
                    found,
                    expected,
                });
            }
            // Files in NVIDIA's and BitNet's formats may have a scale for a weight. Supported
            // scales are in the table.
            let unknown = |name: &String| {
                tensors.find(name).is_some() && table.iter().all(|t| t.name != *name)
            };
            if let Some(key) = scale_of(&spec.name).filter(unknown) {
                return Err(Error::Feature {
                    key,
                    found: "a scale of a whole tensor".into(),
                });
            }
            let weight = WeightInfo {
                name: spec.name.clone(),
                dims: spec.dims.clone(),
                encoding,
            };
            spec.layer
                .map_or(&mut globals, |l| &mut blocks[l])
                .0
                .insert(spec.short.clone(), weight);
        }
        Ok(Checked {
            table,
            globals,
            blocks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Gguf;

    /// A file with one additional scalar tensor.
    struct With<'a>(&'a Gguf, &'static str);

    impl Tensors for With<'_> {
        fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
            if name == self.1 {
                Some((vec![1], &gristmill_encodings::F32))
            } else {
                self.0.find(name)
            }
        }
        fn floats(&self, name: &str) -> Result<Vec<f32>> {
            self.0.floats(name)
        }
    }

    #[test]
    fn a_scale_is_listed_where_it_is_read_and_refused_elsewhere() {
        let file = Gguf::synth("llama-3.1-8b", "q4_0").unwrap();
        let load = |name| crate::arch::load(file.metadata(), &With(&file, name));
        let has = |name: &'static str| {
            load(name)
                .expect("a model")
                .tensors()
                .iter()
                .any(|t| t.name == name)
        };
        assert!(has("blk.0.attn_q.scale") && has("blk.3.ffn_down.scale") && has("output.scale"));
        assert!(!has("blk.0.attn_q.other"));
        for name in ["token_embd.scale", "blk.0.attn_norm.scale"] {
            let error = load(name).err().expect("an error");
            assert!(matches!(error, Error::Feature { key, .. } if key == name));
        }
    }
}
