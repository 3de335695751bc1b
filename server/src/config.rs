//! What a server may be told.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Where a server listens, who may ask, and for how much.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address; loopback unless said.
    pub host: IpAddr,
    /// The name that the address was given by, if any: on loopback, requests may ask for it.
    pub name: Option<String>,
    /// The port; 0 for any that is free.
    pub port: u16,
    /// What clients must show; nothing unless said.
    pub api_key: Option<String>,
    /// Most bytes of a body.
    pub body: usize,
    /// How long a body may take to arrive.
    pub body_time: Duration,
    /// Most requests that wait.
    pub queue: usize,
    /// Most answers to one request.
    pub choices: usize,
    /// Bytes of earlier prompts to keep; `None` for a share of the memory.
    pub keep: Option<usize>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            host: Ipv4Addr::LOCALHOST.into(),
            name: None,
            port: 8080,
            api_key: None,
            body: 4 << 20,
            body_time: Duration::from_secs(30),
            queue: 256,
            choices: 16,
            keep: None,
        }
    }
}
