//! API interfaces: adapters between the wire formats of client families and the core. No interface
//! depends on another; `openai` shares code only among its own endpoints.

mod anthropic;
mod date;
mod fields;
mod interface;
mod loads;
mod models;
mod native;
mod ollama;
mod openai;
mod page;
mod rerank;
mod responses;
mod role;
pub mod routes;
mod serve;
mod shape;
mod tool_choice;

#[cfg(test)]
mod tests;
