//! Errors that end a sequence: of the engine, of sampling, of constrained decoding.

use crate::engine;
use crate::sampling::SamplingError;

/// Error of a grammar or schema that cannot be followed.
pub type ConstraintError = Box<dyn std::error::Error + Send + Sync>;

/// Error that ends a sequence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine failed to run a step.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The next token could not be sampled.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The grammar or schema cannot be followed.
    #[error("generation cannot satisfy the grammar or schema: {0}")]
    Constraint(#[source] ConstraintError),
    /// A hidden row is NaN or infinite: the model computed garbage.
    #[error("a hidden row of the prompt is not finite")]
    HiddenRow,
    /// The prompt leaves no room for another token.
    #[error("the prompt has {prompt} tokens, but the context holds {context}")]
    Prompt {
        /// Number of tokens in the prompt.
        prompt: usize,
        /// Context length in tokens.
        context: usize,
    },
}

impl Error {
    /// Returns whether the device is lost. Every later step on it fails then.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Engine(error) if error.is_lost())
    }
    /// Returns a suggestion for the user, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Engine(error) => error.hint(),
            Error::Sampling(error) => error.hint(),
            Error::HiddenRow => None,
            Error::Constraint(_) => Some("try a simpler schema or grammar".into()),
            Error::Prompt { .. } => Some("shorten the prompt, or give a larger --ctx".into()),
        }
    }
}
