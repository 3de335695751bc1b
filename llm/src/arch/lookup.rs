//! Lookup of a model's tensors by name.

use super::error::{Error, Result};
use super::low_rank::{AppliedAdapter, LowRank, LowRankShape};
use crate::gguf::{AttachedAdapter, Gguf, TensorInfo};
use gristmill_uop::encoding::EncodingRef;

/// Source of tensors by name: a file, or a table in a test.
pub trait Tensors {
    /// Returns the dims (the contiguous one first) and the encoding of a tensor; `None` if absent.
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)>;
    /// Returns the values of an f32 tensor that the model description itself reads.
    ///
    /// # Errors
    /// Returns an error if the tensor is absent, has another type, or cannot be read.
    fn floats(&self, name: &str) -> Result<Vec<f32>> {
        Err(Error::MissingTensor(name.into()))
    }
    /// Returns the adapters that were attached to the model.
    fn adapters(&self) -> Vec<AppliedAdapter> {
        Vec::new()
    }
}

impl Tensors for Gguf {
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
        self.tensor(name).map(|t| (t.dims.clone(), t.encoding))
    }
    fn floats(&self, name: &str) -> Result<Vec<f32>> {
        let info = self
            .tensor(name)
            .ok_or_else(|| Error::MissingTensor(name.into()))?;
        if info.encoding != &gristmill_encodings::F32 as EncodingRef {
            return Err(Error::Feature {
                key: name.into(),
                found: info.encoding.name.into(),
            });
        }
        let mut bytes = vec![0; info.bytes as usize];
        self.read_tensor(info, &mut bytes)?;
        Ok(bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect())
    }
    fn adapters(&self) -> Vec<AppliedAdapter> {
        let applied = |attached: &AttachedAdapter| AppliedAdapter {
            prefix: attached.prefix.clone(),
            choices: attached.choices,
            low_rank: LowRank {
                shapes: self
                    .tensors()
                    .iter()
                    .filter_map(|t| attached_shape(attached, t))
                    .collect(),
            },
        };
        self.attached().iter().map(applied).collect()
    }
}

/// Returns the adapted weight and its shape, if the tensor is the matrix `A` of that adapter.
fn attached_shape(of: &AttachedAdapter, t: &TensorInfo) -> Option<(String, LowRankShape)> {
    let weight = t.name.strip_prefix(&of.prefix)?.strip_suffix(".lora_a")?;
    let mut shape = LowRankShape::new(*t.dims.get(1)? as usize, of.alpha);
    shape.scale *= of.scale;
    Some((weight.to_owned(), shape))
}
