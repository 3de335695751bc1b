//! GGUF, models, tokenizers, chat templates, sampling, sessions.

pub mod arch;
pub mod engine;
pub mod gguf;
pub mod synth;
pub mod chat;
pub mod sampling;
pub mod tokenizer;
