//! Errors of tokenizer construction.

/// Reason why a [`TokenizerSpec`](super::TokenizerSpec) was refused. Encoding
/// and decoding never fail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.ggml.model` names a tokenizer family that is not implemented.
    #[error("tokenizer model {model:?} is not supported")]
    UnsupportedModel {
        /// Model name in the file.
        model: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not in the table.
    #[error("pre-tokenizer {pre:?} is not supported")]
    UnsupportedPre {
        /// Pre-tokenizer name in the file.
        pre: String,
        /// All supported names, comma-separated for messages.
        supported: String,
    },
    /// A pattern of the table does not compile: a bug of this program, not of the file.
    #[error("pattern {pattern:?} of pre-tokenizer {pre:?} does not compile: {reason}")]
    Pattern {
        /// Name of the pre-tokenizer.
        pre: String,
        /// Published pattern that does not compile.
        pattern: String,
        /// Error of the regex engine.
        reason: String,
    },
    /// The vocabulary has no tokens.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// A count or size exceeds the limit.
    #[error("{count} {what}, more than {limit}")]
    TooLarge {
        /// The counted items, for messages.
        what: &'static str,
        /// Number in the file.
        count: usize,
        /// Maximum number that is accepted.
        limit: usize,
    },
    /// The search automaton for special tokens could not be built.
    #[error("the special tokens cannot be searched for: {reason}")]
    Special {
        /// Error of the automaton's construction.
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
        /// Length of the score array.
        scores: usize,
        /// Length of the token array.
        tokens: usize,
    },
    /// Two tokens have the same text, so that text has no unique id.
    #[error("tokens {first} and {second} have the same text {text:?}")]
    DuplicateToken {
        /// Lower of the two ids.
        first: u32,
        /// Higher of the two ids.
        second: u32,
        /// Their text, with invalid bytes replaced.
        text: String,
    },
    /// A merge line is not two non-empty halves separated by a space.
    #[error("merge {index} is malformed: {line:?}")]
    BadMerge {
        /// Rank of the merge.
        index: usize,
        /// The line, truncated to 80 characters.
        line: String,
    },
}

impl TokenizerError {
    /// Returns advice for the user, if there is any.
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
