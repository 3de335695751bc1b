//! A tokenizer as a file describes it.

/// A tokenizer as a file describes it: the `tokenizer.ggml.*` keys.
#[derive(Debug, Clone, Default)]
pub struct TokenizerSpec {
    /// `model`: the family; "gpt2" (byte-level BPE), "llama" (SentencePiece's BPE) or "gemma4" (BPE of characters).
    pub model: String,
    /// `pre`: the pre-tokeniser of "gpt2".
    pub pre: String,
    /// `tokens`: normal tokens byte-mapped, or of "llama" and "gemma4" with U+2581 for a space; all others literal.
    pub tokens: Vec<Vec<u8>>,
    /// `token_type`, at least as many as tokens.
    pub token_types: Option<Vec<i32>>,
    /// `merges`: "left right", by rank.
    pub merges: Vec<String>,
    /// `scores` of SentencePiece, as many as tokens.
    pub scores: Vec<f32>,
    /// `add_space_prefix` of SentencePiece; absent means true.
    pub add_space_prefix: Option<bool>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `eom_token_id`: end of message.
    pub eom: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `add_bos_token`; where absent the pre-tokeniser decides (true for llama-bpe), and of "llama" and "gemma4" it is true.
    pub add_bos: Option<bool>,
    /// `add_eos_token`; absent means false.
    pub add_eos: Option<bool>,
    /// Texts of special tokens that take the white space behind them (`rstrip` of a `tokenizer.json`). A GGUF file does not say which.
    pub strips: Vec<Vec<u8>>,
}
