//! OpenAI's interface, with one file for each endpoint.

pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod settings;

mod frame;
mod logprobs;
mod messages;
mod tools;
mod usage;
