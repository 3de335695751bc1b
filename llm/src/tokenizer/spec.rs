//! Tokenizer specification of a model file.

/// Tokenizer specification of a model file: the `tokenizer.ggml.*` keys.
#[derive(Debug, Clone, Default)]
pub struct TokenizerSpec {
    /// `model`: the family; "gpt2" (byte-level BPE), "llama" (SentencePiece BPE),
    /// "gemma4" (BPE of characters) or "bert" (WordPiece).
    pub model: String,
    /// `pre`: the pre-tokeniser of the family "gpt2".
    pub pre: String,
    /// True if the file does not name its pre-tokeniser and `pre` is a guess.
    pub guessed_pre: bool,
    /// `tokens`: for "gpt2" normal tokens are byte-mapped; for "llama" and "gemma4" they have
    /// U+2581 in place of spaces, for "bert" before words. All others are literal.
    pub tokens: Vec<Vec<u8>>,
    /// `token_type`: at least one per token.
    pub token_types: Option<Vec<i32>>,
    /// `merges`: "left right", by rank.
    pub merges: Vec<String>,
    /// `scores` of SentencePiece: one per token.
    pub scores: Vec<f32>,
    /// `add_space_prefix` of SentencePiece; absent means true.
    pub add_space_prefix: Option<bool>,
    /// `normalizer.lowercase` of WordPiece; absent means true.
    pub lowercase: Option<bool>,
    /// `normalizer.strip_accents` of WordPiece; absent means as `lowercase`.
    pub strip_accents: Option<bool>,
    /// `bos_token_id`: beginning of sequence.
    pub bos: Option<u32>,
    /// `eos_token_id`: end of sequence.
    pub eos: Option<u32>,
    /// `eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `eom_token_id`: end of message.
    pub eom: Option<u32>,
    /// `unknown_token_id`: token for unknown text.
    pub unk: Option<u32>,
    /// `padding_token_id`: token for padding.
    pub pad: Option<u32>,
    /// `add_bos_token`. If absent, the pre-tokeniser decides (true for llama-bpe); for "llama" and
    /// "gemma4" it is true.
    pub add_bos: Option<bool>,
    /// `add_eos_token`: absent means false.
    pub add_eos: Option<bool>,
    /// Texts of special tokens that absorb the white space after them (`rstrip` in
    /// `tokenizer.json`). GGUF files do not contain this.
    pub strips: Vec<Vec<u8>>,
}
