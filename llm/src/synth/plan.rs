//! Plan of a generated model, and errors of generation.

use crate::arch;
use crate::gguf::{self, Gguf, Metadata, TensorData, TensorDecl, VirtualFile, types};
use gristmill_uop::encoding::EncodingRef;

/// An error of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is no configuration.
    #[error("not a configuration: {0}")]
    Json(#[from] serde_json::Error),
    /// A value of the metadata has no counterpart in a GGUF file.
    #[error("the value of {0} is neither a number, a text, true or false, nor a list of numbers")]
    Value(String),
    /// The tokenizer comes from a file.
    #[error("{0} cannot be set, since the tokenizer is that of another model")]
    Tokenizer(String),
    /// The file with the tokenizer has none.
    #[error("{0} has no tokenizer")]
    NoTokenizer(String),
}

/// Reason why a model could not be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No preset has the requested name.
    #[error("no preset named {name}")]
    UnknownPreset {
        /// Name that was requested.
        name: String,
        /// All preset names, comma-separated for messages.
        presets: String,
    },
    /// No file type has the requested name.
    #[error("no quantisation named {name}")]
    UnknownQuant {
        /// Name that was requested.
        name: String,
        /// All quantisation names, comma-separated for messages.
        quants: String,
    },
    /// An option of a quantisation is unknown, or its value is.
    #[error("{0} is no option of a quantisation")]
    Option(String),
    /// A range that is not whole blocks inside the tensor.
    #[error("tensor {tensor}: {bytes} bytes from block {start} on are not whole blocks inside it")]
    Range {
        /// Name of the tensor.
        tensor: String,
        /// Index of the first block requested.
        start: u64,
        /// Number of bytes requested.
        bytes: u64,
    },
    /// A configuration is malformed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The metadata of a preset or a configuration does not describe a model.
    #[error(transparent)]
    Model(#[from] arch::Error),
    /// The model could not be written, or reading it back failed.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
}

impl Error {
    /// Returns advice for the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::UnknownPreset { presets, .. } => Some(format!("presets: {presets}")),
            Error::UnknownQuant { quants, .. } => Some(format!("quantisations: {quants}")),
            Error::Option(_) => Some(
                "router-skew=A, with A from 0 to 4; mtp, where the model has such a block".into(),
            ),
            Error::Range { .. } | Error::Config(_) => None,
            Error::Model(error) => error.hint(),
            Error::Gguf(error) => error.hint(),
        }
    }
}

/// A tensor to be generated.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPlan {
    /// Name in the generated file.
    pub name: String,
    /// Sizes, the contiguous one first.
    pub dims: Vec<u64>,
    /// Encoding of the data.
    pub encoding: EncodingRef,
    /// Size of its data in bytes.
    pub bytes: u64,
    /// Mean of its elements.
    pub mean: f32,
    /// Standard deviation of its elements.
    pub sigma: f32,
    /// Seed of its data.
    pub seed: u64,
    /// Its rows of f32 are multiplied by their ranks to the power of −`skew`.
    pub skew: f32,
}

/// A model to be generated.
#[derive(Clone, Debug)]
pub struct SynthPlan {
    /// All metadata, including the tokenizer's.
    pub metadata: Metadata,
    /// All tensors in file order.
    pub tensors: Vec<TensorPlan>,
}

impl SynthPlan {
    /// Returns the bytes of all tensor data, without padding.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// Opens the model without a file: data is generated when it is read.
    pub(super) fn open(self) -> Result<Gguf, Error> {
        let file = VirtualFile::new(&self.metadata, self.tensors)?;
        Ok(Gguf::from_source(Box::new(file))?)
    }

    pub(super) fn decls(&self) -> Vec<TensorDecl<'_>> {
        self.tensors.iter().map(TensorData::declaration).collect()
    }
}

/// Returns the file type of that name, in any case.
pub(super) fn file_type(name: &str) -> Result<&'static types::FileType, Error> {
    let mut all = types::FILE_TYPES.iter();
    let found = all.find(|f| f.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| Error::UnknownQuant {
        name: name.into(),
        quants: types::FILE_TYPES
            .iter()
            .map(|f| f.name)
            .collect::<Vec<_>>()
            .join(", "),
    })
}
