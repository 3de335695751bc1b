//! Ollama's interface, under `/api`.

pub mod chat;
pub mod embed;
pub mod error;
pub mod generate;
pub mod models;

mod encoder;
mod keep_alive;
mod messages;
mod options;
