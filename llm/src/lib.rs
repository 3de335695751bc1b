//! GGUF, models, tokenizers, chat templates, sampling, sessions.

pub mod tokenizer;
