//! Errors of quantising a model.

use super::importance::ImportanceError;
use crate::gguf;

/// An error of quantising a model.
#[derive(Debug, thiserror::Error)]
pub enum QuantiseError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The importance matrix cannot be used.
    #[error(transparent)]
    Importance(#[from] ImportanceError),
    /// A tensor is quantised already.
    #[error("{tensor} is {from} already, and {to} would add its error to that of {from}")]
    Requantised {
        /// Name of the tensor.
        tensor: String,
        /// Type in the model.
        from: &'static str,
        /// Type to be written.
        to: &'static str,
    },
    /// A type needs an importance matrix.
    #[error("{tensor} would be {to}, which loses too much without an importance matrix")]
    NeedsImportance {
        /// Name of the tensor.
        tensor: String,
        /// Type to be written.
        to: &'static str,
    },
    /// The importance matrix belongs to another model.
    #[error("the importance matrix has {found} numbers for {tensor}, which needs {expected}")]
    ImportanceSize {
        /// Name of the tensor.
        tensor: String,
        /// Columns of all its matrices.
        expected: u64,
        /// Numbers in the importance matrix.
        found: usize,
    },
    /// A tensor has a type that cannot be written.
    #[error("{tensor} would be {encoding}, which can be read but not written")]
    Unwritable {
        /// Name of the tensor.
        tensor: String,
        /// Name of its type.
        encoding: &'static str,
    },
    /// A weight is not finite.
    #[error("{0} has numbers that are infinite or no numbers")]
    NotFinite(String),
    /// A pattern of tensor names is no regular expression.
    #[error("{pattern:?} is no regular expression: {reason}")]
    Pattern {
        /// Pattern as it was given.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The caller stopped it.
    #[error("quantising was stopped")]
    Stopped,
}

impl QuantiseError {
    /// Returns advice for the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            QuantiseError::File(error) => return error.hint(),
            QuantiseError::Importance(ImportanceError::File(error)) => return error.hint(),
            QuantiseError::Importance(_) => {
                "give a file of `gristmill imatrix` or llama-imatrix as --imatrix".into()
            }
            QuantiseError::Requantised { .. } => {
                "quantise the F16, BF16 or F32 file of the model, or add --allow-requantize".into()
            }
            QuantiseError::NeedsImportance { .. } => {
                "make one with `gristmill imatrix MODEL -f TEXT` and give it as --imatrix FILE, or \
                 choose a type of more bits"
                    .into()
            }
            QuantiseError::ImportanceSize { .. } => {
                "give the importance matrix of this model".into()
            }
            QuantiseError::Unwritable { .. } => "choose another type for it".into(),
            QuantiseError::NotFinite(_) => {
                "the file is damaged: download or convert it again".into()
            }
            QuantiseError::Pattern { .. } => {
                "for example --tensor-type 'blk\\.0\\.ffn_down=TYPE'".into()
            }
            QuantiseError::Stopped => return None,
        })
    }
}
