//! What goes wrong between a file and its logits, and what is going on meanwhile.

use crate::{arch, gguf};

/// What goes wrong between a file and its logits.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The model in it.
    #[error(transparent)]
    Model(#[from] arch::Error),
    /// The device.
    #[error(transparent)]
    Device(#[from] gristmill_runtime::Error),
    /// A context that does not fit.
    #[error("a context of {context} tokens needs {need} MB for its cache, and {available} MB are available")]
    Context {
        /// Tokens asked for.
        context: usize,
        /// MB its cache needs.
        need: u64,
        /// MB there are.
        available: u64,
        /// The longest context that would fit.
        fits: usize,
    },
    /// Weights that do not fit.
    #[error("the model's weights take {need} MB, and {available} MB of memory are available")]
    Weights {
        /// MB of weights.
        need: u64,
        /// MB there are.
        available: u64,
        /// Of a preset: those that would fit.
        fitting: Vec<String>,
    },
    /// The context is full.
    #[error("the context of {0} tokens is full")]
    Full(usize),
    /// A token that the vocabulary does not have.
    #[error("token {token} is not one of the model's {vocabulary}")]
    Token {
        /// The id.
        token: u32,
        /// Number of ids.
        vocabulary: usize,
    },
    /// Nothing to compute.
    #[error("no tokens were given")]
    Empty,
    /// A wait for a step while none is in flight.
    #[error("no step is in flight")]
    NotInFlight,
    /// Pages that are none of the pool, or too few for a position.
    #[error("a sequence's pages are not those of its positions")]
    Pages,
    /// More sequences than a step takes.
    #[error("a step of {rows} sequences, where one takes {most}")]
    Sequences {
        /// Sequences asked for.
        rows: usize,
        /// Most of them.
        most: usize,
    },
    /// Logits that predict nothing.
    #[error("the logit of token {token} is {value}, at position {position}")]
    BadLogit {
        /// Of the token before the one that is predicted.
        position: usize,
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// A context of no use.
    #[error("a context of {0} tokens is not possible: the model takes 1 to {1}")]
    BadContext(usize, usize),
}

impl Error {
    /// Is the device lost? Then nothing that is asked of this engine, or of another on that device, will succeed again.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Device(e) if e.is_lost())
    }
    /// A way out, for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::File(e) => e.hint(),
            Error::Model(e) => e.hint(),
            Error::Device(e) => e.hint(),
            Error::Context { fits, .. } if *fits > 0 => {
                Some(format!("--ctx {fits} would fit; a cache of a narrower --kv takes less"))
            }
            Error::Context { .. } => Some("the model itself fills the memory: try a smaller one".into()),
            Error::Weights { fitting, need, .. } => {
                let models = match fitting.is_empty() {
                    true => "a smaller model".into(),
                    false => format!("a model that fits ({})", fitting.join(", ")),
                };
                Some(format!("try a smaller quantisation of it, {models}, or a machine with more than {need} MB free"))
            }
            Error::Full(_) => Some("start again, or give a larger --ctx".into()),
            Error::Token { vocabulary, .. } => Some(format!("ids go from 0 to {}", vocabulary - 1)),
            Error::Empty => Some("a prompt needs at least one token".into()),
            Error::NotInFlight | Error::Pages | Error::Sequences { .. } => {
                Some("this is a bug in gristmill: please report it with the command that led here".into())
            }
            Error::BadLogit { .. } => Some(crate::sampling::GARBAGE.into()),
            Error::BadContext(_, most) => Some(format!("try --ctx {}, or leave it out", most.min(&4096))),
        }
    }
}

/// What is going on while a model is made ready.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress {
    /// Bytes of weights loaded, of how many.
    Loading(u64, u64),
    /// Kernels compiled, of how many.
    Compiling(usize, usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_device_is_told_from_other_errors() {
        let lost = gristmill_runtime::Error::Lost { device: "cuda:0".into(), what: "it fell".into(), hint: "".into() };
        assert!(Error::from(lost).is_lost() && !Error::Empty.is_lost());
        assert!(!Error::from(gristmill_runtime::Error::invalid("a launch", "has no buffers")).is_lost());
    }
}
