//! Tokenizers of GGUF files: byte-level BPE, SentencePiece BPE with scores, Gemma 4's BPE of
//! characters, and WordPiece.
//!
//! Text becomes ids in four steps: special tokens are cut out, pre-tokenisation splits the rest
//! into pieces, each piece is merged (BPE), and BOS and EOS are added if the file requests them.
//! Decoding concatenates the tokens' bytes ([`Decoder`]). The module takes a plain
//! [`TokenizerSpec`]; it does not read files.
//!
//! **Trust.** Control tokens (`<|user|>`, …) steer the model, so text from users must not be able
//! to produce them. [`Tokenizer::encode_spans`] takes spans of trusted and untrusted text, as
//! [`crate::chat`] produces them.

mod bpe;
pub(crate) mod bytes;
mod codec;
mod decode;
pub(crate) mod detect;
mod end_tokens;
mod error;
pub(crate) mod nested;
mod pre;
mod scored;
mod spec;
mod special;
mod split;
mod vocab;
mod word_piece;

pub use bytes::Utf8Stream;
pub use codec::Tokenizer;
pub use decode::Decoder;
pub use error::TokenizerError;
pub use spec::TokenizerSpec;
pub use vocab::TokenKind;
