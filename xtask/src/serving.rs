//! Shared by the commands that load OpenAI-compatible servers: HTTP client, server processes,
//! prompts and stream events.

pub mod access;
pub mod clients;
pub mod completions;
#[cfg(test)]
pub mod fake;
pub mod http;
pub mod quantiles;
pub mod servers;
pub mod workload;
