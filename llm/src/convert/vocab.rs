//! The tokenizer of a checkpoint: tokens, their types, and merges or scores.

use super::error::ConvertError;
use super::folder::{CheckpointFolder, Object};
use super::pieces::Pieces;
use super::token_table::{
    ADDED_SCORE, Added, BYTE, CONTROL, FILE, NORMAL, SETTINGS, UNKNOWN, UNUSED_SCORE, USER_DEFINED,
    Vocab,
};
use super::{tiktoken, word_pieces};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::detect::{BYTE_LEVEL, pre_type};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Name of SentencePiece's file.
const SENTENCEPIECE: &str = "tokenizer.model";

/// Control tokens of Gemma 4 that replies show, since parsers of replies read them.
const VISIBLE: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// Usual names of pre-tokenisers of families, among those with the same rules.
const PREFERRED: &[(&str, &[&str])] = &[
    ("olmo2", &["dbrx"]),
    ("granite", &["refact"]),
    ("llama", &["smollm"]),
    ("minimax-m2", &["minimax-m2"]),
    ("glm4moe", &["glm4"]),
    ("modern-bert", &["modern-bert"]),
];

type Result<T = ()> = std::result::Result<T, ConvertError>;

/// Files of a tokenizer.
pub(super) struct TokenizerFiles<'f> {
    folder: &'f CheckpointFolder,
    /// Contents of `tokenizer.json`, or of `tiktoken.model` in its form, if there is such a file.
    pub json: Option<Object>,
    /// Contents of `tokenizer_config.json`; empty without such a file.
    pub settings: Object,
}

impl<'f> TokenizerFiles<'f> {
    pub fn read(folder: &'f CheckpointFolder) -> Result<TokenizerFiles<'f>> {
        let settings = folder.object(SETTINGS)?.unwrap_or_default();
        let json = match folder.object(FILE)? {
            Some(json) => Some(json),
            None => tiktoken::read(folder, &settings)?,
        };
        Ok(TokenizerFiles {
            folder,
            json,
            settings,
        })
    }
    /// Tokens of `tokenizer.json` that were added.
    pub fn added(&self) -> Result<Vec<Added>> {
        let list = self.json.as_ref().and_then(|json| json.get("added_tokens"));
        let token = |json: &Json| {
            Some(Added {
                id: json.get("id")?.as_u64()?.try_into().ok()?,
                text: json.get("content")?.as_str()?.to_owned(),
                special: json.get("special").and_then(Json::as_bool) == Some(true),
            })
        };
        let list = list.and_then(Json::as_array).into_iter().flatten();
        let all: Option<Vec<_>> = list.map(token).collect();
        all.ok_or_else(|| ConvertError::malformed(FILE, "added_tokens has another form"))
    }
    /// Token ids by text, those of the model and those that were added.
    pub fn ids(&self) -> Result<BTreeMap<String, u32>> {
        let mut ids = BTreeMap::new();
        let model = self.json.as_ref().and_then(|json| json.get("model"));
        let vocab = model.and_then(|model| model.get("vocab"));
        for (text, id) in vocab.and_then(Json::as_object).into_iter().flatten() {
            if let Some(id) = id.as_u64().and_then(|id| id.try_into().ok()) {
                ids.insert(text.clone(), id);
            }
        }
        for token in self.added()? {
            if let Ok(id) = token.id.try_into() {
                ids.insert(token.text, id);
            }
        }
        Ok(ids)
    }
    /// Reads the vocabulary of an embedding of `rows` rows.
    pub fn vocab(&self, architecture: &str, rows: usize) -> Result<Vocab> {
        // The bound of the tokenizer, before memory is taken.
        Tokenizer::admit(rows, 0).map_err(|error| ConvertError::malformed("config.json", error))?;
        let pieces = || Pieces::read(self.folder, SENTENCEPIECE);
        match &self.json {
            Some(json) if architecture == "gemma4" => characters(json, self.added()?, rows),
            Some(json) if word_pieces::is_model(json) => {
                word_pieces::vocab(json, &self.added()?, rows)
            }
            Some(json) if mentions(json, "ByteLevel") => {
                byte_level(json, &self.added()?, architecture, rows)
            }
            _ => match (pieces()?, &self.json) {
                (Some(pieces), _) => pieces.vocab(&self.settings, self.added()?, rows),
                (None, Some(json)) => scored(json, &self.added()?, rows),
                (None, None) => Err(ConvertError::Missing {
                    folder: self.folder.0.display().to_string(),
                    file: FILE,
                    hint: "download tokenizer.json or tokenizer.model into the folder; other forms \
                           become tokenizer.json by save_pretrained of transformers' tokenizer",
                }),
            },
        }
    }
}

/// Whether a part of `tokenizer.json` has a step of that type.
fn mentions(json: &Object, kind: &str) -> bool {
    let parts = ["pre_tokenizer", "decoder"];
    let parts = parts.iter().filter_map(|part| json.get(*part));
    let mut all = parts.flat_map(|part| steps_of(part, &["pretokenizers", "decoders"]));
    all.any(|step| step.get("type").and_then(Json::as_str) == Some(kind))
}

/// Steps of a sequence, or the only step.
fn steps_of<'j>(part: &'j Json, lists: &[&str]) -> Vec<&'j Json> {
    let list = lists.iter().find_map(|list| part.get(*list)?.as_array());
    match list {
        Some(list) => list.iter().collect(),
        None if part.is_null() => Vec::new(),
        None => vec![part],
    }
}

/// The model of `tokenizer.json`: merges of pairs.
struct Merged<'j> {
    vocab: &'j Object,
    model: &'j Json,
    merges: Vec<[String; 2]>,
}

impl<'j> Merged<'j> {
    fn read(json: &'j Object) -> Result<Merged<'j>> {
        let model = json.get("model").unwrap_or(&Json::Null);
        let kind = model.get("type").and_then(Json::as_str).unwrap_or("BPE");
        if kind != "BPE" {
            let what = format!("a tokenizer of type {kind}");
            return Err(ConvertError::unsupported(
                what,
                "BPE and SentencePiece's BPE are",
            ));
        }
        let vocab = model.get("vocab").and_then(Json::as_object);
        let vocab = vocab.ok_or_else(|| ConvertError::malformed(FILE, "it has no vocab"))?;
        let pair = |json: &Json| match json {
            Json::String(text) => {
                let (left, right) = text.split_once(' ')?;
                Some([left.to_owned(), right.to_owned()])
            }
            Json::Array(pair) => {
                let [left, right] = &pair[..] else {
                    return None;
                };
                Some([left.as_str()?.to_owned(), right.as_str()?.to_owned()])
            }
            _ => None,
        };
        let merges = model.get("merges").and_then(Json::as_array);
        let merges: Option<Vec<_>> = merges.into_iter().flatten().map(pair).collect();
        let malformed = || ConvertError::malformed(FILE, "merges have another form");
        let merges = merges.ok_or_else(malformed)?;
        Tokenizer::admit(vocab.len(), merges.len())
            .map_err(|error| ConvertError::malformed(FILE, error))?;
        Ok(Merged {
            vocab,
            model,
            merges,
        })
    }
    /// Fills in the texts of the model's tokens.
    fn fill(&self, to: &mut Vocab, kind: impl Fn(&str) -> i32) -> Result {
        for (text, id) in self.vocab {
            let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
            let id = id.ok_or_else(|| ConvertError::malformed(FILE, "an id is no number"))?;
            to.set(FILE, id, text, kind(text))?;
        }
        Ok(())
    }
    /// Merges as lines; spaces within a token are written as a byte-mapped one.
    fn lines(&self) -> Vec<String> {
        let line = |[left, right]: &[String; 2]| {
            let mapped = |text: &str| text.replace(' ', "\u{120}");
            format!("{} {}", mapped(left), mapped(right))
        };
        self.merges.iter().map(line).collect()
    }
}

/// Byte-level BPE, with the pre-tokeniser that splits as that of the file.
fn byte_level(json: &Object, added: &[Added], architecture: &str, rows: usize) -> Result<Vocab> {
    let merged = Merged::read(json)?;
    let mut vocab = Vocab::unused("gpt2", rows);
    merged.fill(&mut vocab, |_| NORMAL)?;
    for token in added {
        vocab.add(FILE, token)?;
    }
    vocab.merges = merged.lines();
    let whole = merged.model.get("ignore_merges").and_then(Json::as_bool);
    let steps = pre_steps(json.get("pre_tokenizer").unwrap_or(&Json::Null))?;
    let preferred = PREFERRED.iter().find(|row| row.0 == architecture);
    let preferred = preferred.map_or(&[][..], |row| row.1);
    let found = pre_type(&steps, whole == Some(true), preferred)
        .map_err(|error| ConvertError::malformed(FILE, error))?;
    let unknown = || {
        ConvertError::unsupported(
            format!("the pre-tokeniser {}", steps.join(" and then ")),
            "it splits text as no pre-tokeniser of llama.cpp's files does",
        )
    };
    vocab.pre = Some(found.ok_or_else(unknown)?);
    Ok(vocab)
}

/// Patterns of the steps of a pre-tokeniser.
fn pre_steps(json: &Json) -> Result<Vec<String>> {
    let mut patterns = Vec::new();
    for step in steps_of(json, &["pretokenizers"]) {
        let flag = |name: &str| step.get(name).and_then(Json::as_bool);
        let text = |name: &str| step.get(name).and_then(Json::as_str);
        let refused = || {
            let what = format!("the pre-tokeniser {step}");
            Err(ConvertError::unsupported(
                what,
                "Split, Digits and ByteLevel are",
            ))
        };
        match text("type") {
            Some("ByteLevel") if flag("add_prefix_space") == Some(true) => return refused(),
            Some("ByteLevel") if flag("use_regex") == Some(false) => {}
            Some("ByteLevel") => patterns.push(BYTE_LEVEL.into()),
            Some("Digits") if flag("individual_digits") == Some(true) => {
                patterns.push(r"\p{N}".into());
            }
            Some("Digits") => patterns.push(r"\p{N}+".into()),
            Some("Split") => {
                let keeps = match (text("behavior"), flag("invert")) {
                    (Some("Isolated"), _) => true,
                    // The matches alone are kept, and all text is in one.
                    (Some("Removed"), invert) => invert == Some(true),
                    _ => false,
                };
                let pattern = step.get("pattern");
                let of = |kind: &str| pattern.and_then(|p| p.get(kind)?.as_str());
                match (of("Regex"), of("String")) {
                    (Some(regex), _) if keeps => patterns.push(regex.into()),
                    (None, Some(text)) if keeps => patterns.push(fancy_regex::escape(text).into()),
                    _ => return refused(),
                }
            }
            _ => return refused(),
        }
    }
    Ok(patterns)
}

/// BPE of characters with merges: Gemma 4.
fn characters(json: &Object, added: Vec<Added>, rows: usize) -> Result<Vocab> {
    let merged = Merged::read(json)?;
    let mut vocab = Vocab::unused("gemma4", rows);
    vocab.scores = Some(vec![ADDED_SCORE; rows]);
    merged.fill(&mut vocab, plain_kind)?;
    for token in added {
        let kind = match token.special {
            _ if VISIBLE.contains(&token.text.as_str()) => USER_DEFINED,
            true => CONTROL,
            false if merged.vocab.contains_key(&token.text) => NORMAL,
            false => USER_DEFINED,
        };
        vocab.set(FILE, token.id, &token.text, kind)?;
    }
    vocab.merges = merged.lines();
    vocab.space_prefix = Some(false);
    Ok(vocab)
}

/// SentencePiece's BPE from merges: the earlier a merge, the higher the score of its token.
fn scored(json: &Object, added: &[Added], rows: usize) -> Result<Vocab> {
    let merged = Merged::read(json)?;
    let falls_back = merged.model.get("byte_fallback").and_then(Json::as_bool);
    if falls_back != Some(true) {
        let what = "a tokenizer that is neither byte-level nor falls back to bytes";
        return Err(ConvertError::unsupported(
            what,
            "BPE and SentencePiece's BPE are",
        ));
    }
    let mut vocab = Vocab::unused("llama", rows);
    vocab.pre = Some("default");
    vocab.scores = Some(vec![UNUSED_SCORE; rows]);
    let unknown = merged.model.get("unk_token").and_then(Json::as_str);
    merged.fill(&mut vocab, |text| match Some(text) == unknown {
        true => UNKNOWN,
        false => plain_kind(text),
    })?;
    let scores = vocab.scores.get_or_insert_default();
    // Characters come after all merges.
    let mut ranks: BTreeMap<String, usize> = BTreeMap::new();
    for (rank, [left, right]) in merged.merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    for (number, (text, id)) in merged.vocab.iter().enumerate() {
        let rank = ranks
            .get(text)
            .copied()
            .unwrap_or(merged.merges.len() + number);
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        if let Some(score) = id.and_then(|id| scores.get_mut(id)) {
            *score = -(rank as f32);
        }
    }
    for token in added {
        let is_unknown = Some(token.text.as_str()) == unknown;
        match is_unknown {
            true => vocab.set(FILE, token.id, &token.text, UNKNOWN)?,
            false => vocab.add(FILE, token)?,
        }
    }
    vocab.space_prefix = Some(has_space_prefix(json));
    Ok(vocab)
}

/// Type of a token of the model itself.
fn plain_kind(text: &str) -> i32 {
    let byte = text
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    match byte.is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok()) {
        true => BYTE,
        false => NORMAL,
    }
}

/// Whether text gets a space before it.
fn has_space_prefix(json: &Object) -> bool {
    let parts = ["normalizer", "pre_tokenizer"]
        .iter()
        .filter_map(|part| json.get(*part));
    let mut steps = parts.flat_map(|part| steps_of(part, &["normalizers", "pretokenizers"]));
    steps.any(|step| match step.get("type").and_then(Json::as_str) {
        Some("Prepend") => true,
        Some("Metaspace") => {
            let scheme = step.get("prepend_scheme").and_then(Json::as_str);
            let old = step.get("add_prefix_space").and_then(Json::as_bool);
            scheme.map_or(old != Some(false), |scheme| scheme != "never")
        }
        _ => false,
    })
}
