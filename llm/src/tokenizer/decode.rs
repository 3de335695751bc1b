//! Streaming decoder: ids to text, one at a time.

use super::{Tokenizer, Utf8Stream};

/// Decodes the tokens of one sequence to text as they arrive.
///
/// Tokens are concatenated as *bytes*, and a token may end inside a character. A push may
/// therefore return nothing and the next one the whole character; see [`Utf8Stream`]. Special
/// tokens are suppressed unless requested.
///
/// ```
/// # use gristmill_llm::tokenizer::{Decoder, Tokenizer, TokenizerSpec};
/// # let tokens = ["Ã", "©", "a"].map(|t| t.as_bytes().to_vec()).to_vec();
/// # let (model, pre) = ("gpt2".into(), "glm4".into());
/// # let spec = TokenizerSpec { model, pre, tokens, ..TokenizerSpec::default() };
/// # let tokenizer = Tokenizer::new(spec).unwrap();
/// let mut decoder = Decoder::new(&tokenizer);
/// assert_eq!(decoder.push(0), "");
/// assert_eq!(decoder.push(1), "é");
/// assert_eq!(decoder.finish(), "");
/// ```
#[derive(Debug, Clone)]
pub struct Decoder<'t> {
    tokenizer: &'t Tokenizer,
    stream: Utf8Stream,
    show_special: bool,
}

impl<'t> Decoder<'t> {
    /// Creates a decoder that suppresses special tokens.
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self {
            tokenizer,
            stream: Utf8Stream::default(),
            show_special: false,
        }
    }

    /// Sets whether control, unknown and unused tokens are printed as their literal text.
    pub fn show_special(mut self, show: bool) -> Self {
        self.show_special = show;
        self
    }

    /// Returns the text that `id` completes. An id outside the vocabulary (models may have
    /// padding rows) prints nothing.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        self.stream
            .push(self.tokenizer.output_bytes(id, self.show_special), &mut out);
        out
    }

    /// Ends the sequence and resets the decoder; an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.stream.finish(&mut out);
        out
    }
}
