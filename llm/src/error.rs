//! Errors of loading and running a model, and the progress of loading.

use crate::{arch, gguf};

/// An error of loading or running a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model file cannot be read.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The file's model is malformed or unsupported.
    #[error(transparent)]
    Model(#[from] arch::Error),
    /// The device reported an error.
    #[error(transparent)]
    Device(#[from] gristmill_runtime::Error),
    /// The requested context does not fit in memory.
    #[error(
        "a context of {context} tokens needs {need} MB for its cache, and {available} MB are available"
    )]
    Context {
        /// Requested context, in tokens.
        context: usize,
        /// MB that its KV cache needs.
        need: u64,
        /// Available memory in MB.
        available: u64,
        /// The longest context that would fit; 0 if none does.
        fits: usize,
    },
    /// The weights do not fit in memory.
    #[error("the model's weights take {need} MB, and {available} MB of memory are available")]
    Weights {
        /// Size of the weights in MB.
        need: u64,
        /// Available memory in MB.
        available: u64,
        /// Preset names of the model that would fit.
        fitting: Vec<String>,
    },
    /// A run of training does not fit.
    #[error("training needs {need} MB, and {available} MB of memory are available")]
    TrainingMemory {
        /// MB that the run needs.
        need: u64,
        /// Available memory in MB.
        available: u64,
        /// Tokens of a pass that would fit; 0 if none do.
        fits: u64,
    },
    /// The context is full.
    #[error("the context of {0} tokens is full")]
    Full(usize),
    /// The model is a text encoder, and a step was to compute logits.
    #[error("the model is a text encoder, which computes embeddings and generates no text")]
    Encoder,
    /// The model is no text encoder.
    #[error("the model is no text encoder")]
    NoEncoder,
    /// A text to encode is longer than the context.
    #[error("a text of {tokens} tokens is longer than the context of {context}")]
    Text {
        /// Tokens of the text.
        tokens: usize,
        /// Most tokens of a text.
        context: usize,
    },
    /// A token id is outside the vocabulary.
    #[error("token {token} is not one of the model's {vocabulary}")]
    Token {
        /// The invalid token id.
        token: u32,
        /// Number of ids in the vocabulary.
        vocabulary: usize,
    },
    /// No tokens were given.
    #[error("no tokens were given")]
    Empty,
    /// A step was waited for while none was in flight.
    #[error("no step is in flight")]
    NotInFlight,
    /// A page number is outside the pool, or there are too few pages for a position.
    #[error("a sequence's pages are not those of its positions")]
    Pages,
    /// A step has more sequences than it supports.
    #[error("a step of {rows} sequences, where one takes {most}")]
    Sequences {
        /// Number of sequences in the step.
        rows: usize,
        /// Maximum sequences of a step.
        most: usize,
    },
    /// A logit is not finite.
    #[error("the logit of token {token} is {value}, at position {position}")]
    BadLogit {
        /// Position of the token before the predicted one.
        position: usize,
        /// The first token with such a logit.
        token: usize,
        /// The logit of that token.
        value: f32,
    },
    /// A layer's weights are on two devices, and its function has no parts for them.
    #[error("{0} cannot be computed on two devices")]
    NotSeparable(String),
    /// A requested context length is zero or longer than the model allows.
    #[error("a context of {0} tokens is not possible: the model takes 1 to {1}")]
    BadContext(usize, usize),
}

impl Error {
    /// Returns whether the device is lost. Every later call to this engine, or to another engine on
    /// that device, fails then.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Device(e) if e.is_lost())
    }
    /// Returns a suggestion for the user, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::File(e) => e.hint(),
            Error::Model(e) => e.hint(),
            Error::Device(e) => e.hint(),
            Error::Context { fits, .. } if *fits > 0 => Some(format!(
                "--ctx {fits} would fit; a quantised KV cache (--kv) takes half of what the default f16 does"
            )),
            Error::Context { .. } => {
                Some("the model itself fills the memory: try a smaller one, a quantised KV cache (--kv), or end other programs".into())
            }
            Error::Weights { fitting, need, .. } => {
                let models = match fitting.is_empty() {
                    true => "a smaller model".into(),
                    false => format!("a model that fits ({})", fitting.join(", ")),
                };
                Some(format!(
                    "try a smaller quantisation of it, {models}, or a machine with more than {need} MB free"
                ))
            }
            Error::TrainingMemory { fits: 0, .. } => Some(
                "the model and its parameters alone fill the memory: try a smaller model, a lower --rank or fewer --targets".into(),
            ),
            Error::TrainingMemory { fits, .. } => Some(format!(
                "some {fits} tokens a pass would fit: lower --batch or --ctx; --accumulate keeps the size of a step"
            )),
            Error::Full(_) => Some("start again, or give a larger --ctx".into()),
            Error::Encoder => Some(
                "start `gristmill serve MODEL` and send texts to /v1/embeddings".into(),
            ),
            Error::Text { .. } => Some(
                "an encoder reads a text as a whole: shorten it, or send its parts as texts".into(),
            ),
            Error::Token { vocabulary, .. } => Some(format!("ids go from 0 to {}", vocabulary - 1)),
            Error::Empty => Some("a prompt needs at least one token".into()),
            Error::NotInFlight | Error::NoEncoder | Error::Pages | Error::Sequences { .. } => Some(
                "this is a bug in gristmill: please report it with the command that led here"
                    .into(),
            ),
            Error::NotSeparable(_) => Some(
                "place whole layers instead of experts: --gpu-layers N without --cpu-moe".into(),
            ),
            Error::BadLogit { .. } => Some(crate::sampling::GARBAGE.into()),
            Error::BadContext(_, most) => {
                Some(format!("try --ctx {}, or leave it out", most.min(&4096)))
            }
        }
    }
}

/// Progress of loading a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress {
    /// Bytes of weights loaded so far, and in total.
    Loading(u64, u64),
    /// Functions (kinds of layers) scheduled as kernels so far, and in total.
    Planning(usize, usize),
    /// Kernels compiled so far, and in total.
    Compiling(usize, usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_device_is_told_from_other_errors() {
        let lost = gristmill_runtime::Error::Lost {
            device: "cuda:0".into(),
            what: "it fell".into(),
            hint: "".into(),
        };
        assert!(Error::from(lost).is_lost() && !Error::Empty.is_lost());
        assert!(
            !Error::from(gristmill_runtime::Error::invalid(
                "a launch",
                "has no buffers"
            ))
            .is_lost()
        );
    }
}
