//! Errors for well-formed files that do not describe a supported model.

use crate::gguf;

/// Reason why a model was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata key is absent or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] gguf::Error),
    /// The architecture is not in the table.
    #[error("models of architecture {name} are not supported")]
    Architecture {
        /// Value of `general.architecture` in the file.
        name: String,
        /// Supported architecture with the most similar name, if one is similar enough.
        nearest: Option<&'static str>,
        /// All supported architectures, comma-separated for messages.
        supported: String,
    },
    /// A hyper-parameter is out of bounds.
    #[error("{key} is {found}: it must be {expected}")]
    Parameter {
        /// Metadata key, or the quantity it was computed from.
        key: String,
        /// Value in the file.
        found: String,
        /// Description of valid values.
        expected: &'static str,
    },
    /// A valid hyper-parameter requests a feature that is not implemented.
    #[error("{key} = {found} is not supported")]
    Feature {
        /// Metadata key that requests it.
        key: String,
        /// Value in the file.
        found: String,
    },
    /// A block for draft tokens was made for another model.
    #[error("the block for draft tokens is of another model: {key} is {found}, not {own}")]
    OtherModel {
        /// Metadata key of the block, or the quantity it was computed from.
        key: String,
        /// Value in the file of the block.
        found: String,
        /// Value of the model.
        own: String,
    },
    /// A required tensor is absent.
    #[error("tensor {0} is missing")]
    MissingTensor(String),
    /// A tensor's dims do not match the hyper-parameters.
    #[error("tensor {tensor} has dims {found:?}, the hyper-parameters demand {expected:?}")]
    Shape {
        /// Name of the tensor.
        tensor: String,
        /// Dims in the file, the contiguous one first.
        found: Vec<u64>,
        /// Dims that the hyper-parameters require, the contiguous one first.
        expected: Vec<u64>,
    },
}

/// Result with the error of model descriptions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns advice for the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::Metadata(error) => return error.hint(),
            Error::Architecture { nearest: Some(nearest), supported, .. } => {
                format!("the nearest that there is: {nearest}; all of them: {supported}")
            }
            Error::Architecture { supported, .. } => format!("supported: {supported}"),
            Error::Parameter { .. } | Error::Shape { .. } => {
                "the file is damaged or was converted by a faulty tool: get it from another publisher".into()
            }
            Error::Feature { .. } => "computing without it would give wrong answers, so the model is refused".into(),
            Error::OtherModel { .. } => {
                "such a file fits the one model that it was trained with: remove it, or get that model's".into()
            }
            Error::MissingTensor(_) => {
                "the file may be one part of a split model, or an adapter: open the first or the main file".into()
            }
        })
    }
}
