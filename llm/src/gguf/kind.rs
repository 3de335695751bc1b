//! Kinds of GGUF files that are no models, and their names for the user.

use super::error::{Error, Result};
use super::metadata::Metadata;
use std::fmt;

/// Kind of a GGUF file that cannot generate text by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OtherKind {
    /// A projector of images or sound into a model's embeddings.
    Projector,
    /// A LoRA adapter.
    Adapter,
    /// A text encoder, which computes embeddings or scores: its architecture.
    Encoder(String),
    /// A vocabulary without weights.
    Vocabulary,
    /// Statistics for quantisation.
    ImportanceMatrix,
    /// Another value of `general.type`.
    Other(String),
}

/// Architectures of text encoders, which have no causal attention.
const ENCODERS: &[&str] = &[
    "bert",
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "modern-bert",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "t5encoder",
];

impl OtherKind {
    /// Returns the kind that the metadata declares; `None` for models and for files that do not say.
    ///
    /// # Errors
    /// When a key has the wrong type.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<OtherKind>> {
        let architecture = metadata.str("general.architecture")?;
        Ok(match (metadata.str("general.type")?, architecture) {
            (Some("mmproj"), _) | (_, Some("clip")) => Some(OtherKind::Projector),
            (Some("adapter"), _) => Some(OtherKind::Adapter),
            _ if metadata.str("adapter.type")?.is_some() => Some(OtherKind::Adapter),
            (Some("imatrix"), _) => Some(OtherKind::ImportanceMatrix),
            (Some("vocab"), _) => Some(OtherKind::Vocabulary),
            (_, Some(name)) if ENCODERS.contains(&name) => Some(OtherKind::Encoder(name.into())),
            (None | Some("model"), _) => None,
            (Some(other), _) => Some(OtherKind::Other(other.into())),
        })
    }
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
            OtherKind::Encoder(_) => {
                "open a model that generates text; encoders, for embeddings or ranking, are not \
                 supported"
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

impl From<OtherKind> for Error {
    fn from(kind: OtherKind) -> Error {
        Error::NotAModel(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_beside_models_are_called_what_they_are() {
        let kind = |pairs: &[(&str, &str)]| {
            let mut metadata = Metadata::new();
            for &(key, value) in pairs {
                metadata.insert(key, value);
            }
            OtherKind::from_metadata(&metadata).unwrap()
        };
        let architecture = "general.architecture";
        for (pairs, named) in [
            (&[(architecture, "clip")][..], "mmproj"),
            (
                &[(architecture, "llama"), ("general.type", "mmproj")],
                "mmproj",
            ),
            (
                &[(architecture, "llama"), ("general.type", "adapter")],
                "LoRA adapter",
            ),
            (
                &[(architecture, "llama"), ("adapter.type", "lora")],
                "LoRA adapter",
            ),
            (&[(architecture, "nomic-bert")], "embedding model"),
            (&[("general.type", "imatrix")], "importance matrix"),
            (
                &[(architecture, "llama"), ("general.type", "vocab")],
                "vocabulary",
            ),
            (
                &[(architecture, "llama"), ("general.type", "dataset")],
                "type dataset",
            ),
        ] {
            let kind = kind(pairs).expect(named);
            assert!(
                kind.to_string().contains(named) && !kind.hint().is_empty(),
                "{kind}"
            );
        }
        for pairs in [
            &[][..],
            &[(architecture, "llama")],
            &[(architecture, "qwen3"), ("general.type", "model")],
        ] {
            assert_eq!(kind(pairs), None, "{pairs:?}");
        }
    }
}
