//! Fill-in-the-middle (FIM) prompts.

use gristmill_llm::tokenizer::{TokenKind, Tokenizer};

/// FIM tokens of a family of models: prefix, hole, suffix.
const FIM_TOKENS: &[[&str; 3]] = &[
    // DeepSeek's models.
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
];

/// FIM tokens of a model.
pub struct Fim {
    tokens: [u32; 3],
}

impl Fim {
    /// Returns the FIM tokens of a vocabulary, if it has any.
    pub fn new(tokenizer: &Tokenizer) -> Option<Fim> {
        let id = |text: &str| {
            let id = tokenizer.token_id(text)?;
            tokenizer
                .token_kind(id)
                .filter(|kind| *kind != TokenKind::Normal)
                .map(|_| id)
        };
        FIM_TOKENS.iter().find_map(|[begin, hole, end]| {
            Some(Fim {
                tokens: [id(begin)?, id(hole)?, id(end)?],
            })
        })
    }
    /// Returns the prompt for the text between two others.
    pub fn tokens(&self, tokenizer: &Tokenizer, before: &str, after: &str) -> Vec<u32> {
        let [begin, hole, end] = self.tokens;
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
