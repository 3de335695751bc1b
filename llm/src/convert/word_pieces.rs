//! WordPiece vocabularies of `tokenizer.json`, as GGUF files have them: tokens that begin a word
//! with U+2581 before them, and others without `##`.

use super::error::ConvertError;
use super::folder::Object;
use super::token_table::{Added, CONTROL, FILE, NORMAL, Vocab};
use crate::tokenizer::Tokenizer;
use serde_json::Value as Json;

/// Whether a tokenizer's model is WordPiece.
pub(super) fn is_model(json: &Object) -> bool {
    let kind = json.get("model").and_then(|model| model.get("type"));
    kind.and_then(Json::as_str) == Some("WordPiece")
}

/// Reads the vocabulary of an embedding of `rows` rows.
pub(super) fn vocab(json: &Object, added: &[Added], rows: usize) -> Result<Vocab, ConvertError> {
    let model = json.get("model").unwrap_or(&Json::Null);
    let text = |part: &Json, name: &str| part.get(name).and_then(Json::as_str).map(str::to_owned);
    if let Some(prefix) = text(model, "continuing_subword_prefix").filter(|of| of != "##") {
        let what = format!("WordPiece with {prefix:?} within words");
        return Err(ConvertError::unsupported(what, "## is"));
    }
    let tokens = model.get("vocab").and_then(Json::as_object);
    let tokens = tokens.ok_or_else(|| ConvertError::malformed(FILE, "it has no vocab"))?;
    Tokenizer::admit(tokens.len(), 0).map_err(|error| ConvertError::malformed(FILE, error))?;
    let mut vocab = Vocab::unused("bert", rows);
    for (token, id) in tokens {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        let id = id.ok_or_else(|| ConvertError::malformed(FILE, "an id is no number"))?;
        let within = token.strip_prefix("##").filter(|rest| !rest.is_empty());
        let text = within.map_or_else(|| format!("\u{2581}{token}"), str::to_owned);
        vocab.set(FILE, id, &text, NORMAL)?;
    }
    for token in added {
        vocab.set(FILE, token.id, &token.text, CONTROL)?;
    }
    vocab.pre = Some("default");
    vocab.normalizer = Some(normalizer(json.get("normalizer").unwrap_or(&Json::Null))?);
    Ok(vocab)
}

/// Whether a normaliser removes case, and accents.
fn normalizer(json: &Json) -> Result<[bool; 2], ConvertError> {
    let kind = json.get("type").and_then(Json::as_str);
    let flag = |name: &str| json.get(name).and_then(Json::as_bool);
    if kind != Some("BertNormalizer") || flag("handle_chinese_chars") == Some(false) {
        let what = format!("WordPiece with the normaliser {json}");
        return Err(ConvertError::unsupported(what, "BertNormalizer is"));
    }
    let lowercase = flag("lowercase").unwrap_or(true);
    Ok([lowercase, flag("strip_accents").unwrap_or(lowercase)])
}
