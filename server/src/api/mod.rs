//! Interfaces: how requests come and answers go, for each kind of client. An interface is an adapter to the core; none knows another, but for what
//! `openai` shares within itself.

mod anthropic;
mod date;
mod interface;
mod loads;
mod models;
mod native;
mod ollama;
mod openai;
mod page;
mod responses;
pub mod routes;
mod serve;
mod shape;

#[cfg(test)]
mod tests;
