//! What commands share that ask servers of OpenAI's interface: a client, servers that are started, prompts, and what a stream says.

pub mod access;
pub mod clients;
pub mod completions;
#[cfg(test)]
pub mod fake;
pub mod http;
pub mod quantiles;
pub mod servers;
pub mod workload;
