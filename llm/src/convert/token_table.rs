//! Tokens of a converted model as metadata: texts, types, scores and merges.

use super::error::ConvertError;
use crate::gguf::{Array, Metadata, Strings, Value};

/// Name of the tokenizer's file.
pub(super) const FILE: &str = "tokenizer.json";
/// Name of the file with a tokenizer's settings.
pub(super) const SETTINGS: &str = "tokenizer_config.json";

/// Numbers of `tokenizer.ggml.token_type`.
pub(super) const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
pub(super) const BYTE: i32 = 6;

/// Scores of tokens that no merge makes.
pub(super) const ADDED_SCORE: f32 = -1000.0;
pub(super) const UNUSED_SCORE: f32 = -10_000.0;

type Result<T = ()> = std::result::Result<T, ConvertError>;

/// A token that was added to the vocabulary.
pub(super) struct Added {
    pub id: usize,
    pub text: String,
    pub special: bool,
}

/// Tokens of a converted model.
pub(super) struct Vocab {
    /// Value of `tokenizer.ggml.model`.
    pub model: &'static str,
    pub pre: Option<&'static str>,
    pub texts: Vec<Vec<u8>>,
    pub types: Vec<i32>,
    pub scores: Option<Vec<f32>>,
    pub merges: Vec<String>,
    pub space_prefix: Option<bool>,
    /// Whether WordPiece removes case, and accents.
    pub normalizer: Option<[bool; 2]>,
}

impl Vocab {
    /// Tokens without text for all rows of an embedding.
    pub fn unused(model: &'static str, rows: usize) -> Vocab {
        Vocab {
            model,
            pre: None,
            texts: (0..rows)
                .map(|id| format!("[PAD{id}]").into_bytes())
                .collect(),
            types: vec![UNUSED; rows],
            scores: None,
            merges: Vec::new(),
            space_prefix: None,
            normalizer: None,
        }
    }
    /// Sets the text and type of a token.
    pub fn set(&mut self, file: &str, id: usize, text: &str, kind: i32) -> Result {
        let (Some(to), Some(kinds)) = (self.texts.get_mut(id), self.types.get_mut(id)) else {
            let rows = self.types.len();
            let problem = format!("token {id}, where the model has {rows} tokens");
            return Err(ConvertError::malformed(file, problem));
        };
        *to = text.as_bytes().to_vec();
        *kinds = kind;
        Ok(())
    }
    /// Adds a token beside those that merges make.
    pub fn add(&mut self, file: &str, token: &Added) -> Result {
        let is_control = token.special || looks_special(&token.text);
        // Texts that users write have plain spaces.
        let text = match is_control {
            true => token.text.clone(),
            false => token.text.replace('\u{2581}', " "),
        };
        let kind = if is_control { CONTROL } else { USER_DEFINED };
        self.set(file, token.id, &text, kind)?;
        if let Some(scores) = &mut self.scores {
            scores[token.id] = ADDED_SCORE;
        }
        Ok(())
    }
    /// Writes the keys of the vocabulary.
    pub fn write(self, metadata: &mut Metadata) {
        let mut set = |name: &str, value: Value| {
            metadata.insert(format!("tokenizer.ggml.{name}"), value);
        };
        set("model", self.model.into());
        if let Some(pre) = self.pre {
            set("pre", pre.into());
        }
        set("tokens", self.texts.iter().collect::<Strings>().into());
        if let Some(scores) = self.scores {
            set("scores", scores.into());
        }
        set("token_type", Value::Array(Array::I32(self.types)));
        if !self.merges.is_empty() {
            set("merges", self.merges.iter().collect::<Strings>().into());
        }
        if let Some(prefix) = self.space_prefix {
            set("add_space_prefix", prefix.into());
        }
        if let Some([lowercase, strip_accents]) = self.normalizer {
            set("normalizer.lowercase", lowercase.into());
            set("normalizer.strip_accents", strip_accents.into());
        }
    }
}

/// Whether a token that is not marked as special is a control token all the same.
fn looks_special(text: &str) -> bool {
    let between = |begin: &str, end: &str| text.starts_with(begin) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || between("<|", "|>")
        || between("<\u{ff5c}", "\u{ff5c}>")
        || between("<unused", ">")
}
