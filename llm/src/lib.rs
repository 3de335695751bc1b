//! GGUF, models, tokenizers, chat templates, sampling, sessions.

pub mod arch;
pub mod chat;
pub mod engine;
pub mod file;
pub mod generation;
pub mod gguf;
pub mod language;
mod load;
pub mod perplexity;
pub mod prefix;
pub mod sampling;
pub mod sched;
pub mod session;
pub mod synth;
pub mod tokenizer;
pub mod traffic;
