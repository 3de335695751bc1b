//! Where a model's tensors are looked up.

use super::error::{Error, Result};
use crate::gguf::Gguf;
use gristmill_uop::encoding::EncodingRef;

/// Where a model's tensors are looked up: a file, or a table in a test.
pub trait Tensors {
    /// Dims (the contiguous one first) and encoding of a tensor.
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)>;
    /// The numbers of a tensor of f32: of the few that a description reads itself.
    ///
    /// # Errors
    /// When it is absent, of another type, or cannot be read.
    fn floats(&self, name: &str) -> Result<Vec<f32>> {
        Err(Error::MissingTensor(name.into()))
    }
}

impl Tensors for Gguf {
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
        self.tensor(name).map(|t| (t.dims.clone(), t.encoding))
    }
    fn floats(&self, name: &str) -> Result<Vec<f32>> {
        let info = self.tensor(name).ok_or_else(|| Error::MissingTensor(name.into()))?;
        if info.encoding != &gristmill_encodings::F32 as EncodingRef {
            return Err(Error::Feature { key: name.into(), found: info.encoding.name.into() });
        }
        let mut bytes = vec![0; info.bytes as usize];
        self.read_tensor(info, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }
}
