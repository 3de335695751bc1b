//! A toy vocabulary that covers any text, for targets that need a tokenizer.

use gristmill_llm::chat::markup::all_markers;
use gristmill_llm::chat::{ChatTemplate, Isolation, SpecialTexts};
use gristmill_llm::file::{Array, Metadata, Value};
use gristmill_llm::language;
use gristmill_llm::pooling::Pooling;
use gristmill_llm::rerank::RerankPrompt;
use gristmill_llm::sampling::SamplingParams;
use gristmill_llm::tokenizer::Tokenizer;
use gristmill_server::ModelText;

/// Special tokens that structure a conversation, in addition to those of replies.
const TURNS: &[&str] = &[
    "<|endoftext|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|observation|>",
];

/// Maps a byte to its character in a byte-level BPE vocabulary: itself if printable, otherwise a
/// letter from U+0100.
pub fn written(byte: u8) -> char {
    let prints = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..);
    match prints(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|&b| !prints(b)).count() as u32;
            char::from_u32(256 + before).unwrap_or_else(|| unreachable!("{byte}"))
        }
    }
}

/// Builds tokenizer metadata: a pre-tokeniser, all bytes, further tokens with
/// their types, and merges.
pub fn metadata(pre: &str, more: &[(Vec<u8>, i32)], merges: &[Vec<u8>]) -> Metadata {
    let mut tokens: Vec<Vec<u8>> = (0..=255)
        .map(|b| written(b).to_string().into_bytes())
        .collect();
    let mut types = vec![1i32; tokens.len()];
    for (text, kind) in more {
        tokens.push(text.clone());
        types.push(*kind);
    }
    let mut metadata = Metadata::new();
    metadata
        .insert("tokenizer.ggml.model", "gpt2")
        .insert("tokenizer.ggml.pre", pre);
    metadata.insert(
        "tokenizer.ggml.tokens",
        Value::Array(Array::Str(tokens.into_iter().collect())),
    );
    metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    metadata.insert(
        "tokenizer.ggml.merges",
        Value::Array(Array::Str(merges.iter().collect())),
    );
    metadata
}

/// A tokenizer with some words and the special tokens of conversations and replies.
pub fn tokenizer() -> Tokenizer {
    let control = TURNS
        .iter()
        .copied()
        .chain(all_markers())
        .map(|text| (text.as_bytes().to_vec(), 3));
    let words = ["he", "ll", "hell", "hello", "\u{120}w"].map(|word| (word.as_bytes().to_vec(), 1));
    let more: Vec<(Vec<u8>, i32)> = words.into_iter().chain(control).collect();
    let merges =
        ["h e", "l l", "he ll", "hell o", "\u{120} w"].map(|merge| merge.as_bytes().to_vec());
    let mut metadata = metadata("glm4", &more, &merges);
    metadata.insert("tokenizer.ggml.eos_token_id", 261u32);
    language::tokenizer(&metadata).unwrap_or_else(|error| unreachable!("{error}"))
}

/// The text components of a model, in the form that the server uses.
pub fn text(template: &str) -> ModelText {
    let tokenizer = tokenizer();
    let template = ChatTemplate::new(
        template,
        &SpecialTexts::from(&tokenizer),
        &Isolation::InProcess,
    );
    let template = template.unwrap_or_else(|error| unreachable!("{error}"));
    ModelText {
        name: "toy".into(),
        tokenizer,
        template,
        sampling: SamplingParams::default(),
        pooling: Pooling::default(),
        rerank: RerankPrompt::default(),
    }
}
