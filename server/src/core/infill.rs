//! Texts with something missing in the middle, for models that were made to fill it in.

use gristmill_llm::tokenizer::{TokenKind, Tokenizer};

/// The signs of a family of models: before the beginning, where something is missing, behind the end.
const SIGNS: &[[&str; 3]] = &[
    // DeepSeek.
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
];

/// The signs of one model, as tokens.
pub struct Infill {
    signs: [u32; 3],
}

impl Infill {
    /// Those of a vocabulary, if it has any.
    pub fn of(tokenizer: &Tokenizer) -> Option<Infill> {
        let id = |text: &str| {
            let id = tokenizer.token_id(text)?;
            tokenizer.token_kind(id).filter(|kind| *kind != TokenKind::Normal).map(|_| id)
        };
        SIGNS.iter().find_map(|[begin, hole, end]| Some(Infill { signs: [id(begin)?, id(hole)?, id(end)?] }))
    }
    /// The prompt for what stands between two texts.
    pub fn tokens(&self, tokenizer: &Tokenizer, before: &str, after: &str) -> Vec<u32> {
        let [begin, hole, end] = self.signs;
        let text = |text: &str| tokenizer.encode(text, false, false);
        let mut tokens: Vec<u32> = tokenizer.bos().into_iter().collect();
        tokens.push(begin);
        tokens.extend(text(before));
        tokens.push(hole);
        tokens.extend(text(after));
        tokens.push(end);
        tokens
    }
}
