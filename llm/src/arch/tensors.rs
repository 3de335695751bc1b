//! The table of a model's tensors, with the dims its hyper-parameters demand: the loader checks a file against it, `synth` generates what it
//! lists, and tests are made of it.

use super::{Error, Result, Tensors};
use crate::gguf::Role;
use gristmill_uop::encoding::EncodingRef;
use std::borrow::Cow;
use std::collections::HashMap;

/// A tensor that a model has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the file.
    pub name: String,
    /// The part of the name that all blocks share.
    pub short: Cow<'static, str>,
    /// Its block, if it is in one.
    pub layer: Option<usize>,
    /// Row-major: rows first, elements of a row last.
    pub dims: Vec<usize>,
    /// What it is for.
    pub role: Role,
}

/// A table while it is written. Of tensors whose absence has a meaning, those that are there are listed.
pub(super) struct Table<'a> {
    there: &'a dyn Tensors,
    layer: Option<usize>,
    list: Vec<TensorSpec>,
}

impl<'a> Table<'a> {
    /// None yet.
    pub fn new(there: &'a dyn Tensors) -> Table<'a> {
        Table { there, layer: None, list: Vec::new() }
    }
    /// What follows is in that block.
    pub fn block(&mut self, layer: usize) {
        self.layer = Some(layer);
    }
    fn name(&self, short: &str) -> String {
        self.layer.map_or(short.into(), |l| format!("blk.{l}.{short}"))
    }
    /// Is one of that name there?
    pub fn has(&self, short: &str) -> bool {
        self.there.find(&self.name(short)).is_some()
    }
    /// One that must be there; with the number that multiplies all of a matrix, or one for each expert's, where the file has that beside it.
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
        self.list.push(TensorSpec { name, short, layer, dims: dims.into(), role });
    }
    /// One that may be absent.
    pub fn optional(&mut self, short: &'static str, role: Role, dims: &[usize]) {
        if self.has(short) {
            self.need(short, role, dims);
        }
    }
    /// Embedding, last norm and head of rows of `d`. Where there is no head, the embedding serves.
    pub fn ends(&mut self, vocabulary: usize, d: usize) {
        let tied = !self.has("output.weight");
        let embedding = if tied { Role::Output } else { Role::Matrix };
        self.need("token_embd.weight", embedding, &[vocabulary, d]);
        self.need("output_norm.weight", Role::Norm, &[d]);
        self.optional("output.weight", Role::Output, &[vocabulary, d]);
    }
    /// The role of a down projection of the current block.
    pub fn down(&self) -> Role {
        Role::Down(self.layer.unwrap_or(0) as u64)
    }
    /// All of them.
    pub fn finish(self) -> Vec<TensorSpec> {
        self.list
    }
}

/// What stands beside a weight where something multiplies all of it.
pub(super) fn scale_of(weight: &str) -> Option<String> {
    weight.strip_suffix(".weight").map(|stem| format!("{stem}.scale"))
}

/// A packed tensor of the model.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Weight {
    /// Its name in the file.
    pub name: String,
    /// Row-major: rows first, elements of a row last.
    pub dims: Vec<usize>,
    /// How it is packed.
    pub encoding: EncodingRef,
}

/// The tensors of one block, or those of no block, by the part of their name that all blocks share.
#[derive(Clone, Default, Debug)]
pub(super) struct Weights(HashMap<Cow<'static, str>, Weight>);

impl Weights {
    /// The tensor of that name, which was checked to exist.
    pub fn get(&self, name: &str) -> &Weight {
        self.0.get(name).unwrap_or_else(|| panic!("{name} is not in the table of tensors"))
    }
    /// Is it in the table?
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// A model's tensors, found in a file and of the dims in the table.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    /// The table.
    pub table: Vec<TensorSpec>,
    /// Tensors of no block.
    pub globals: Weights,
    /// Those of each block.
    pub blocks: Vec<Weights>,
}

impl Checked {
    /// Every tensor of the table, of a model of so many layers. Other tensors of the file are ignored.
    ///
    /// # Errors
    /// When a tensor is missing, has other dims, or has a scale where nothing multiplies by one.
    pub fn new(table: Vec<TensorSpec>, layers: usize, tensors: &dyn Tensors) -> Result<Checked> {
        let (mut globals, mut blocks) = (Weights::default(), vec![Weights::default(); layers]);
        for spec in &table {
            let found = tensors.find(&spec.name);
            let (found, encoding) = found.ok_or_else(|| Error::MissingTensor(spec.name.clone()))?;
            let expected: Vec<u64> = spec.dims.iter().rev().map(|&d| d as u64).collect();
            // Axes of length 1 at the end are a matter of taste.
            let trim = |d: &[u64]| d.iter().rposition(|&n| n != 1).map_or(0, |i| i + 1);
            if found[..trim(&found)] != expected[..trim(&expected)] {
                return Err(Error::Shape { tensor: spec.name.clone(), found, expected });
            }
            // Files of NVIDIA's and of BitNet's formats may have a number beside a weight that multiplies all of it. Those that are read are in the table.
            let unknown = |name: &String| tensors.find(name).is_some() && table.iter().all(|t| t.name != *name);
            if let Some(key) = scale_of(&spec.name).filter(unknown) {
                return Err(Error::Feature { key, found: "a scale of a whole tensor".into() });
            }
            let weight = Weight { name: spec.name.clone(), dims: spec.dims.clone(), encoding };
            spec.layer.map_or(&mut globals, |l| &mut blocks[l]).0.insert(spec.short.clone(), weight);
        }
        Ok(Checked { table, globals, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Gguf;

    /// A file, and the name of a number that it has besides.
    struct With<'a>(&'a Gguf, &'static str);

    impl Tensors for With<'_> {
        fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
            if name == self.1 { Some((vec![1], &gristmill_encodings::F32)) } else { self.0.find(name) }
        }
        fn floats(&self, name: &str) -> Result<Vec<f32>> {
            self.0.floats(name)
        }
    }

    #[test]
    fn a_scale_is_listed_where_it_is_read_and_refused_elsewhere() {
        let file = Gguf::synth("llama-3.1-8b", "q4_0").unwrap();
        let load = |name| crate::arch::load(file.metadata(), &With(&file, name));
        let has = |name: &'static str| load(name).expect("a model").tensors().iter().any(|t| t.name == name);
        assert!(has("blk.0.attn_q.scale") && has("blk.3.ffn_down.scale") && has("output.scale"));
        assert!(!has("blk.0.attn_q.other"));
        for name in ["token_embd.scale", "blk.0.attn_norm.scale"] {
            let error = load(name).err().expect("an error");
            assert!(matches!(error, Error::Feature { key, .. } if key == name));
        }
    }
}
