//! Kinds of GGUF files that are no models, and their names for the user.

use std::fmt;
use std::path::Path;

/// Begin of the names of files with a block for draft tokens alone.
pub(super) const PREFIX: &str = "mtp-";

/// Ending of the architecture of a model's assistant.
pub(super) const ASSISTANT: &str = "-assistant";

/// Returns the architecture of the models that an assistant of this one drafts for.
pub(crate) fn assistant_of(architecture: &str) -> Option<&str> {
    let with_line = architecture.strip_suffix("_assistant");
    architecture.strip_suffix(ASSISTANT).or(with_line)
}

/// Returns whether a path names a file with a block for draft tokens alone: `mtp-*.gguf`.
pub fn is_draft_block_path(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(PREFIX))
}

/// Kind of a GGUF file that cannot generate text by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OtherKind {
    /// A projector of images or sound into a model's embeddings.
    Projector,
    /// Low-rank differences (LoRA) to the weights of a base model.
    Adapter,
    /// An assistant, which drafts tokens for another model by its KV cache.
    Assistant,
    /// A text encoder, which computes embeddings or scores: its architecture.
    Encoder(String),
    /// A vocabulary without weights.
    Vocabulary,
    /// Importance of each weight column, from which `llama-quantize` weighs errors.
    ImportanceMatrix,
    /// Another value of `general.type`.
    Other(String),
}

impl OtherKind {
    /// Returns the way to use such a file, or the file to use instead.
    pub fn hint(&self) -> &'static str {
        match self {
            OtherKind::Projector => {
                "open the model that it belongs to, usually the other .gguf file of the same \
                 repository; images and sound are not supported"
            }
            OtherKind::Adapter => {
                "merge it into its base model, with llama.cpp's llama-export-lora for example, and \
                 open the result"
            }
            OtherKind::Assistant => {
                "open the model that it drafts for, with --speculate and the path of this file"
            }
            OtherKind::Encoder(_) => {
                "of the encoders, for embeddings or ranking, those of architecture bert, \
                 modern-bert and nomic-bert are supported"
            }
            OtherKind::Vocabulary => "`gristmill tokenize` can use it; open a file with weights",
            OtherKind::ImportanceMatrix | OtherKind::Other(_) => "open the model's own .gguf file",
        }
    }
}

impl fmt::Display for OtherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OtherKind::Projector => f.write_str(
                "a vision or audio projector (mmproj) for use with a model, not a model itself",
            ),
            OtherKind::Adapter => {
                f.write_str("a LoRA adapter for use with a model, not a model itself")
            }
            OtherKind::Assistant => {
                f.write_str("an assistant that drafts tokens for another model")
            }
            OtherKind::Encoder(architecture) => write!(
                f,
                "an embedding model (a text encoder of architecture {architecture}), which \
                 generates no text"
            ),
            OtherKind::Vocabulary => f.write_str("only a vocabulary: it has no weights"),
            OtherKind::ImportanceMatrix => {
                f.write_str("an importance matrix for quantisation, not a model")
            }
            OtherKind::Other(kind) => write!(f, "of type {kind}, not a model"),
        }
    }
}
