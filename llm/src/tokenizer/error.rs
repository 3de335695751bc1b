//! Errors of tokenizer construction.

/// Why a [`TokenizerSpec`](super::TokenizerSpec) cannot become a tokenizer. Encoding and decoding themselves never fail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.ggml.model` names a tokenizer family that is not implemented.
    #[error("tokenizer model {model:?} is not supported")]
    UnsupportedModel {
        /// The name in the file.
        model: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not in the table.
    #[error("pre-tokenizer {pre:?} is not supported")]
    UnsupportedPre {
        /// The name in the file.
        pre: String,
        /// Those that are in the table, for people.
        supported: String,
    },
    /// A pattern of the table failed to compile: a bug of this program, not of the file.
    #[error("pattern {pattern:?} of pre-tokenizer {pre:?} does not compile: {reason}")]
    Pattern {
        /// The pre-tokenizer.
        pre: String,
        /// The pattern.
        pattern: String,
        /// What the regex engine said.
        reason: String,
    },
    /// The vocabulary has no tokens.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// More of something than any vocabulary has.
    #[error("{count} {what}, more than {limit}")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// The special tokens cannot be searched for.
    #[error("the special tokens cannot be searched for: {reason}")]
    Special {
        /// What the search engine said.
        reason: String,
    },
    /// `tokenizer.ggml.token_type` is shorter than `tokenizer.ggml.tokens`.
    #[error("{types} token types for {tokens} tokens")]
    TokenTypes {
        /// Length of the type array.
        types: usize,
        /// Length of the token array.
        tokens: usize,
    },
    /// `tokenizer.ggml.scores` is not as long as `tokenizer.ggml.tokens`.
    #[error("{scores} scores for {tokens} tokens")]
    Scores {
        /// Length of the array of scores.
        scores: usize,
        /// Length of the token array.
        tokens: usize,
    },
    /// Two tokens have the same text, so that text has no unique id.
    #[error("tokens {first} and {second} have the same text {text:?}")]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// Their text (lossy).
        text: String,
    },
    /// A merge line is not two non-empty halves separated by a space.
    #[error("merge {index} is malformed: {line:?}")]
    BadMerge {
        /// Its rank.
        index: usize,
        /// The line, cut after 80 characters.
        line: String,
    },
}

impl TokenizerError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnsupportedModel { .. } => {
                Some("supported: \"gpt2\" (byte-level BPE), \"llama\" (SentencePiece's BPE) and \"gemma4\" (BPE of characters)".into())
            }
            Self::UnsupportedPre { supported, .. } => Some(format!("supported: {supported}")),
            Self::Pattern { .. } => Some("this is a bug in Gristmill; please report it with the model's name".into()),
            Self::EmptyVocabulary => Some("the file carries no tokenizer; use the original model file".into()),
            Self::TooLarge { .. }
            | Self::Special { .. }
            | Self::TokenTypes { .. }
            | Self::Scores { .. }
            | Self::DuplicateToken { .. }
            | Self::BadMerge { .. } => {
                Some("the file is damaged or was converted wrongly; download or convert it again".into())
            }
        }
    }
}
