//! GGUF, models, tokenizers, chat templates, sampling, sessions.

pub mod chat;
pub mod sampling;
pub mod tokenizer;
