//! Why the contents of a well-formed file are not a model that can be run.

use crate::gguf;

/// Why a model was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata key that is absent or of the wrong type.
    #[error(transparent)]
    Metadata(#[from] gguf::Error),
    /// An architecture that has no description.
    #[error("models of architecture {name} are not supported")]
    Architecture {
        /// What the file says.
        name: String,
        /// The name most like it of those that are, if one is.
        nearest: Option<&'static str>,
        /// All those that are, for people.
        supported: String,
    },
    /// A hyper-parameter outside what can be.
    #[error("{key} is {found}: it must be {expected}")]
    Parameter {
        /// The metadata key, or what it was computed from.
        key: String,
        /// What the file says.
        found: String,
        /// What would be valid.
        expected: &'static str,
    },
    /// A valid hyper-parameter whose meaning is not implemented.
    #[error("{key} = {found} is not supported")]
    Feature {
        /// The metadata key.
        key: String,
        /// What the file says.
        found: String,
    },
    /// A tensor that is needed and absent.
    #[error("tensor {0} is missing")]
    MissingTensor(String),
    /// A tensor whose dims do not follow from the hyper-parameters.
    #[error("tensor {tensor} has dims {found:?}, the hyper-parameters demand {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Dims in the file, the contiguous one first.
        found: Vec<u64>,
        /// Dims demanded.
        expected: Vec<u64>,
    },
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What the user can do about it, where that is known.
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
            Error::MissingTensor(_) => {
                "the file may be one part of a split model, or an adapter: open the first or the main file".into()
            }
        })
    }
}
