//! Copies of checkpoints in a temporary folder, with other files and weights.

use crate::common::data;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const WEIGHTS: &str = "model.safetensors";

/// A tensor.
#[derive(Clone)]
pub struct RawTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl RawTensor {
    pub fn empty() -> RawTensor {
        RawTensor {
            dtype: Dtype::F32,
            shape: Vec::new(),
            bytes: Vec::new(),
        }
    }
    /// A tensor of bytes that are appended later.
    pub fn of_bytes(shape: Vec<usize>) -> RawTensor {
        RawTensor {
            dtype: Dtype::U8,
            shape,
            bytes: Vec::new(),
        }
    }
    pub fn of_floats(shape: Vec<usize>, values: &[f32]) -> RawTensor {
        RawTensor {
            dtype: Dtype::F32,
            shape,
            bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }
    pub fn append(&mut self, other: &RawTensor) {
        self.dtype = other.dtype;
        self.bytes.extend(&other.bytes);
    }
}

/// A copy of a checkpoint of the test data.
pub struct Copied {
    folder: TempDir,
    parts: BTreeMap<String, RawTensor>,
}

impl Copied {
    pub fn of(family: &str) -> Copied {
        let folder = TempDir::new().expect("a folder");
        let from = data(&format!("convert/{family}"));
        for file in fs::read_dir(from).expect("test data") {
            let file = file.expect("a file");
            fs::copy(file.path(), folder.path().join(file.file_name())).expect("a copy");
        }
        let bytes = fs::read(folder.path().join(WEIGHTS)).expect("weights");
        let tensors = SafeTensors::deserialize(&bytes).expect("weights");
        let part = |(name, view): (String, TensorView<'_>)| {
            let part = RawTensor {
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                bytes: view.data().to_vec(),
            };
            (name, part)
        };
        let parts = tensors.tensors().into_iter().map(part).collect();
        Copied { folder, parts }
    }
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
    pub fn names(&self) -> Vec<String> {
        self.parts.keys().cloned().collect()
    }
    pub fn part(&self, name: &str) -> RawTensor {
        self.parts
            .get(name)
            .unwrap_or_else(|| panic!("no {name}"))
            .clone()
    }
    pub fn add(&mut self, name: &str, part: RawTensor) {
        self.parts.insert(name.into(), part);
    }
    pub fn remove(&mut self, name: &str) {
        assert!(self.parts.remove(name).is_some(), "{name}");
    }
    /// Writes the weights.
    pub fn save(&self) {
        self.save_some(WEIGHTS, |_| true);
    }
    fn save_some(&self, file: &str, is_in: impl Fn(usize) -> bool) {
        let chosen = self
            .parts
            .iter()
            .enumerate()
            .filter(|(number, _)| is_in(*number));
        let views = chosen.map(|(_, (name, part))| {
            let view = TensorView::new(part.dtype, part.shape.clone(), &part.bytes);
            (name, view.expect("a tensor"))
        });
        let bytes = safetensors::serialize(views, None).expect("weights");
        self.write(file, &bytes);
    }
    /// Divides the weights over two files with an index.
    pub fn split(&mut self) {
        let files = [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        for (parity, file) in files.iter().enumerate() {
            self.save_some(file, |number| number % 2 == parity);
        }
        let names = self.parts.keys().enumerate();
        let map: serde_json::Map<String, Value> = names
            .map(|(number, name)| (name.clone(), json!(files[number % 2])))
            .collect();
        let index = json!({"metadata": {}, "weight_map": map});
        self.write("model.safetensors.index.json", index.to_string().as_bytes());
        self.delete(WEIGHTS);
    }
    pub fn write(&self, file: &str, bytes: &[u8]) {
        fs::write(self.path().join(file), bytes).expect("a file");
    }
    pub fn delete(&self, file: &str) {
        fs::remove_file(self.path().join(file)).expect("a file");
    }
    /// Changes a JSON file.
    pub fn json(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let text = fs::read_to_string(self.path().join(file)).expect("a file");
        let mut json = serde_json::from_str(&text).expect("JSON");
        change(&mut json);
        self.write(file, json.to_string().as_bytes());
    }
    pub fn config(&self, change: impl FnOnce(&mut Value)) {
        self.json("config.json", change);
    }
}
