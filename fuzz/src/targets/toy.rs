//! A toy vocabulary, whole enough for any text: what targets that need a tokenizer read it with.

use gristmill_llm::chat::markup::all_markers;
use gristmill_llm::chat::{ChatTemplate, Isolation, SpecialTexts};
use gristmill_llm::file::{Array, Metadata, Value};
use gristmill_llm::language;
use gristmill_llm::sampling::SamplingParams;
use gristmill_llm::tokenizer::Tokenizer;
use gristmill_server::Text;

/// Texts that structure a conversation, as special tokens, besides those that structure a reply.
const TURNS: &[&str] = &["<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|observation|>"];

/// What a byte is written as in a vocabulary of bytes: itself where it prints, a letter from U+0100 on where it does not.
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

/// Metadata of a tokenizer: that pre-tokeniser, every byte, these further tokens with their types, these merges.
pub fn metadata(pre: &str, more: &[(Vec<u8>, i32)], merges: &[Vec<u8>]) -> Metadata {
    let mut tokens: Vec<Vec<u8>> = (0..=255).map(|b| written(b).to_string().into_bytes()).collect();
    let mut types = vec![1i32; tokens.len()];
    for (text, kind) in more {
        tokens.push(text.clone());
        types.push(*kind);
    }
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "gpt2").insert("tokenizer.ggml.pre", pre);
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::Str(tokens.into_iter().collect())));
    metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    metadata.insert("tokenizer.ggml.merges", Value::Array(Array::Str(merges.iter().collect())));
    metadata
}

/// A tokenizer of words, and of texts that structure conversations and replies.
pub fn tokenizer() -> Tokenizer {
    let control = TURNS.iter().copied().chain(all_markers()).map(|text| (text.as_bytes().to_vec(), 3));
    let words = ["he", "ll", "hell", "hello", "\u{120}w"].map(|word| (word.as_bytes().to_vec(), 1));
    let more: Vec<(Vec<u8>, i32)> = words.into_iter().chain(control).collect();
    let merges = ["h e", "l l", "he ll", "hell o", "\u{120} w"].map(|merge| merge.as_bytes().to_vec());
    let mut metadata = metadata("glm4", &more, &merges);
    metadata.insert("tokenizer.ggml.eos_token_id", 261u32);
    language::tokenizer(&metadata).unwrap_or_else(|error| unreachable!("{error}"))
}

/// A model as a server knows it, as far as text goes.
pub fn text(template: &str) -> Text {
    let tokenizer = tokenizer();
    let template = ChatTemplate::new(template, &SpecialTexts::from(&tokenizer), &Isolation::InProcess);
    let template = template.unwrap_or_else(|error| unreachable!("{error}"));
    Text { name: "toy".into(), tokenizer, template, sampling: SamplingParams::default() }
}
