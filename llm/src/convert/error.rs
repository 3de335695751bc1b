//! Errors of converting a checkpoint.

use crate::{arch, gguf};
use std::io;
use std::path::Path;

/// An error of converting a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A file cannot be read.
    #[error("cannot read {path}: {error}")]
    Io {
        /// Path of the file.
        path: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The folder lacks a file.
    #[error("{folder} has no {file}")]
    Missing {
        /// Path of the folder.
        folder: String,
        /// Name of the file.
        file: &'static str,
        /// How to get it.
        hint: &'static str,
    },
    /// A file is malformed.
    #[error("{file}: {problem}")]
    Malformed {
        /// Name of the file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file asks for something that is not implemented.
    #[error("{what} is not supported")]
    Unsupported {
        /// Setting and value, as the message names them.
        what: String,
        /// Supported values, or a way around.
        hint: String,
    },
    /// A tensor does not fit the model.
    #[error("{name}: {problem}")]
    Tensor {
        /// Name of the tensor in the checkpoint.
        name: String,
        /// What does not fit.
        problem: String,
    },
    /// The converted model could not be encoded.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The converted model is incomplete.
    #[error("the converted model is not complete: {0}")]
    Model(#[from] arch::Error),
}

impl ConvertError {
    /// Returns advice for the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            ConvertError::Io { .. } => "check the path and its permissions".into(),
            ConvertError::Missing { hint, .. } => (*hint).into(),
            ConvertError::Malformed { .. } => "download the model again".into(),
            ConvertError::Unsupported { hint, .. } => hint.clone(),
            ConvertError::Tensor { .. } => {
                "the weights are not those that config.json describes: download the model again"
                    .into()
            }
            ConvertError::File(error) => return error.hint(),
            ConvertError::Model(error) => return error.hint(),
        })
    }
    /// Creates the error of a malformed file.
    pub(super) fn malformed(file: &str, problem: impl ToString) -> ConvertError {
        ConvertError::Malformed {
            file: file.into(),
            problem: problem.to_string(),
        }
    }
    /// Creates the error of a setting that is not supported.
    pub(super) fn unsupported(what: impl ToString, hint: impl ToString) -> ConvertError {
        ConvertError::Unsupported {
            what: what.to_string(),
            hint: hint.to_string(),
        }
    }
    /// Creates the error of a tensor that does not fit.
    pub(super) fn tensor(name: &str, problem: impl ToString) -> ConvertError {
        ConvertError::Tensor {
            name: name.into(),
            problem: problem.to_string(),
        }
    }
    /// Creates the error of a file that cannot be read.
    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> ConvertError {
        let path = path.display().to_string();
        move |error| ConvertError::Io {
            path: path.clone(),
            error,
        }
    }
}
