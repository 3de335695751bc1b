//! Weights of a checkpoint: one `.safetensors` file, or several with an index.

use super::error::ConvertError;
use super::folder::CheckpointFolder;
use crate::safetensors_file::{SafetensorsError, SafetensorsFile, element_bytes};
use safetensors::tensor::{Dtype, TensorInfo};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Names of the files.
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const PICKLE: &str = "pytorch_model.bin";
/// Most files of a checkpoint; the largest published ones have about 200.
const MAX_FILES: usize = 10_000;
/// Most integers of a list, such as the token ids of a vocabulary. All of them are exact in f32.
const MAX_INTEGERS: usize = 1 << 24;

/// Tensors of a checkpoint.
pub(super) struct Checkpoint {
    files: Vec<SafetensorsFile>,
    /// File of each tensor, by name.
    tensors: BTreeMap<String, usize>,
}

impl Checkpoint {
    /// Opens all files of a folder.
    pub fn open(folder: &CheckpointFolder) -> Result<Checkpoint, ConvertError> {
        let listed = files(folder)?;
        let mut checkpoint = Checkpoint {
            files: Vec::new(),
            tensors: BTreeMap::new(),
        };
        for file in &listed.files {
            let path = folder.path(file);
            let opened = SafetensorsFile::open(&path).map_err(|error| match error {
                SafetensorsError::Io(error) => ConvertError::io(&path)(error),
                SafetensorsError::Malformed(problem) => ConvertError::malformed(file, problem),
            })?;
            for name in opened.names() {
                let number = checkpoint.files.len();
                if checkpoint.tensors.insert(name.clone(), number).is_some() {
                    return Err(ConvertError::tensor(&name, "it is in two files"));
                }
            }
            checkpoint.files.push(opened);
        }
        let missing = listed
            .names
            .iter()
            .find(|name| checkpoint.info(name).is_none());
        match missing {
            Some(name) => Err(ConvertError::tensor(
                name,
                "the index lists it, and no file has it",
            )),
            None => Ok(checkpoint),
        }
    }
    /// Names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
    /// Type and row-major shape of a tensor.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.files[*self.tensors.get(name)?].info(name)
    }
    /// Describes a tensor as a matrix with rows along its last axis.
    pub fn matrix(&self, name: &str) -> Result<Source, ConvertError> {
        let failed = |problem: &str| ConvertError::tensor(name, problem);
        let (Some(info), Some(&file)) = (self.info(name), self.tensors.get(name)) else {
            return Err(failed("it is missing"));
        };
        let size = element_bytes(info.dtype);
        let size = size.ok_or_else(|| failed(&format!("type {:?} is not read", info.dtype)))?;
        let columns = info.shape.last().copied().unwrap_or(1);
        let rows = info.shape.iter().rev().skip(1).product();
        if columns == 0 || rows == 0 {
            return Err(failed("it is empty"));
        }
        Ok(Source {
            name: name.into(),
            file,
            dtype: info.dtype,
            size,
            rows,
            columns,
        })
    }
    /// Reads a list of integers, such as token ids.
    pub fn integers(&self, name: &str) -> Result<Vec<i64>, ConvertError> {
        let failed = |problem: &str| ConvertError::tensor(name, problem);
        let (Some(info), Some(&file)) = (self.info(name), self.tensors.get(name)) else {
            return Err(failed("it is missing"));
        };
        let count = match (info.dtype, &info.shape[..]) {
            (Dtype::I64, &[count @ 1..=MAX_INTEGERS]) => count,
            _ => return Err(failed("it is no list of I64, at most 2^24 of them")),
        };
        let mut bytes = vec![0; count * size_of::<i64>()];
        let read = self.files[file].read_at(info, 0, &mut bytes);
        read.map_err(|error| failed(&error.to_string()))?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|&word| i64::from_le_bytes(word)).collect())
    }
    /// Fills `out` from an element of a tensor on.
    pub fn read(&self, source: &Source, element: u64, out: &mut [u8]) -> io::Result<()> {
        let file = &self.files[source.file];
        let info = file.info(&source.name).ok_or(io::ErrorKind::NotFound)?;
        file.read_at(info, element * source.size as u64, out)
    }
}

/// A tensor of a checkpoint as a matrix.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Source {
    pub name: String,
    file: usize,
    pub dtype: Dtype,
    /// Bytes of an element.
    pub size: usize,
    pub rows: usize,
    pub columns: usize,
}

/// Files of a checkpoint, and the tensors that its index lists.
struct Listed {
    files: BTreeSet<String>,
    names: Vec<String>,
}

fn files(folder: &CheckpointFolder) -> Result<Listed, ConvertError> {
    let mut listed = Listed {
        files: BTreeSet::new(),
        names: Vec::new(),
    };
    if let Some(index) = folder.object(INDEX)? {
        let map = index.get("weight_map").and_then(Json::as_object);
        let map = map.ok_or_else(|| ConvertError::malformed(INDEX, "it has no weight_map"))?;
        for (name, file) in map {
            // Names of other folders would lead anywhere.
            let plain = file
                .as_str()
                .filter(|file| file.ends_with(".safetensors") && !file.contains(['/', '\\']));
            let Some(file) = plain else {
                return Err(ConvertError::malformed(
                    INDEX,
                    format!("{file} is no file name"),
                ));
            };
            listed.files.insert(file.into());
            listed.names.push(name.clone());
        }
        if listed.files.len() > MAX_FILES {
            let problem = format!("it lists {} files", listed.files.len());
            return Err(ConvertError::malformed(INDEX, problem));
        }
        return Ok(listed);
    }
    if folder.path(SINGLE).exists() {
        listed.files.insert(SINGLE.into());
        return Ok(listed);
    }
    let hint = match folder.path(PICKLE).exists() {
        true => {
            "pytorch_model.bin is a pickle, which may run code: save the model with \
             save_pretrained(safe_serialization=True)"
        }
        false => "download the .safetensors files of the model into the folder",
    };
    Err(ConvertError::Missing {
        folder: folder.0.display().to_string(),
        file: SINGLE,
        hint,
    })
}
