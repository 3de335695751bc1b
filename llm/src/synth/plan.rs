//! What is generated, and why it cannot be.

use crate::arch;
use crate::gguf::{self, Metadata, TensorDecl};
use gristmill_uop::encoding::EncodingRef;

/// Why a model could not be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No preset of that name.
    #[error("no preset named {name}")]
    UnknownPreset {
        /// What was asked for.
        name: String,
        /// Those there are, for people.
        presets: String,
    },
    /// No file type of that name.
    #[error("no quantisation named {name}")]
    UnknownQuant {
        /// What was asked for.
        name: String,
        /// Those there are, for people.
        quants: String,
    },
    /// A range that is not whole blocks inside the tensor.
    #[error("tensor {tensor}: {bytes} bytes from block {start} on are not whole blocks inside it")]
    Range {
        /// The tensor.
        tensor: String,
        /// First block asked for.
        start: u64,
        /// Bytes asked for.
        bytes: u64,
    },
    /// A preset's metadata describes no model.
    #[error(transparent)]
    Model(#[from] arch::Error),
    /// The model could not be written, or reading it back failed.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
}

impl Error {
    /// What the user can do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::UnknownPreset { presets, .. } => Some(format!("presets: {presets}")),
            Error::UnknownQuant { quants, .. } => Some(format!("quantisations: {quants}")),
            Error::Range { .. } => None,
            Error::Model(error) => error.hint(),
            Error::Gguf(error) => error.hint(),
        }
    }
}

/// A tensor to be generated.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPlan {
    /// Name.
    pub name: String,
    /// Sizes, the contiguous one first.
    pub dims: Vec<u64>,
    /// How it is encoded.
    pub encoding: EncodingRef,
    /// Size of its data in bytes.
    pub bytes: u64,
    /// Mean of its elements.
    pub mean: f32,
    /// Standard deviation of its elements.
    pub sigma: f32,
    /// Seed of its data.
    pub seed: u64,
}

/// A model to be generated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All metadata, the tokenizer's included.
    pub metadata: Metadata,
    /// All tensors in file order.
    pub tensors: Vec<TensorPlan>,
}

impl Plan {
    /// Bytes of all tensor data, without padding.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    pub(super) fn decls(&self) -> Vec<TensorDecl<'_>> {
        self.tensors.iter().map(|t| TensorDecl { name: &t.name, dims: &t.dims, encoding: t.encoding }).collect()
    }
}
