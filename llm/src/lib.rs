//! GGUF, models, tokenizers, chat templates, sampling, sessions.

pub mod arch;
pub mod chat;
pub mod engine;
pub mod gguf;
pub mod sampling;
pub mod synth;
pub mod tokenizer;
