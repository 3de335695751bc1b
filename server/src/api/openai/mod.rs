//! OpenAI's interface, with one file for each endpoint.

pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod settings;

mod frame;
pub mod llama;
mod logprobs;
mod messages;
pub mod template;
mod tools;
mod usage;
