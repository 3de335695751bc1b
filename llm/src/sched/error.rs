//! Errors of sequences: of the engine, of sampling, of a grammar.

use crate::engine;
use crate::sampling::SamplingError;

/// Error of a constraint that cannot be followed.
pub type ConstraintError = Box<dyn std::error::Error + Send + Sync>;

/// Error that ends a sequence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Of the engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// Of the choice of a token.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Of the grammar or schema.
    #[error("what the answer must look like cannot be followed any further: {0}")]
    Constraint(#[source] ConstraintError),
    /// A prompt that leaves no room for an answer.
    #[error("the prompt has {prompt} tokens, and the context {context}")]
    Prompt {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
}

impl Error {
    /// Is the device lost? Then every later step on it fails.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Engine(error) if error.is_lost())
    }
    /// What the user can do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Engine(error) => error.hint(),
            Error::Sampling(error) => error.hint(),
            Error::Constraint(_) => Some("a simpler schema or grammar may do".into()),
            Error::Prompt { .. } => Some("shorten the prompt, or give a larger --ctx".into()),
        }
    }
}
