//! What a server may be told.

use crate::core::limits::Limits;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Where a server listens, who may ask, and for how much.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address; loopback unless said.
    pub host: IpAddr,
    /// The name that the address was given by, if any: on loopback, requests may ask for it.
    pub name: Option<String>,
    /// Names besides loopback's own that a server on loopback is asked by: those of a proxy before it.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may ask from a browser; `*` for all. None unless said.
    pub cors: Vec<String>,
    /// The port; 0 for any that is free.
    pub port: u16,
    /// What clients must show; nothing unless said.
    pub api_key: Option<String>,
    /// Most bytes of a body.
    pub body: usize,
    /// Most bytes of all bodies at a time, besides the first [`Config::SMALL_BODY`] of each.
    pub bodies: usize,
    /// How long a body may take to arrive.
    pub body_time: Duration,
    /// Most connections at a time; at least four times [`Config::queue`] are let in whatever it says. One address may have half of them.
    pub connections: usize,
    /// How long a connection may be without a whole head of a request: from its opening, and from one answer to the next request.
    pub head_time: Duration,
    /// How long a client may not read what is told to it. A client that reads less than two kilobytes a second counts as one.
    pub write_time: Duration,
    /// Most requests that wait.
    pub queue: usize,
    /// Most bytes of an answer that is told at once, about: text, and probabilities as JSON. It ends where they are used up.
    pub answer: usize,
    /// Most bytes of an answer that were not read yet, about; then it is ended.
    pub unread: usize,
    /// Most answers to one request.
    pub choices: usize,
    /// How long those who were let in are answered once the server was asked to end.
    pub drain: Duration,
    /// Who owns the models, as `/v1/models` has it: routers that know a few engines look there for one of them.
    pub owned_by: String,
    /// Bytes of each model's host KV cache; `None` for a share of the memory.
    pub keep: Option<usize>,
    /// Whether requests are batch-invariant that do not say: their steps run the kernels of the largest batch.
    pub batch_invariant: bool,
}

impl Config {
    /// Bytes of a body that are always taken: so few that all connections together may have them.
    pub const SMALL_BODY: usize = 64 << 10;
    /// What of it bounds requests and answers.
    pub(crate) fn limits(&self) -> Limits {
        let &Config { answer, unread, choices, .. } = self;
        Limits { answer, unread, choices }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            host: Ipv4Addr::LOCALHOST.into(),
            name: None,
            allowed_hosts: Vec::new(),
            cors: Vec::new(),
            port: 8080,
            api_key: None,
            body: 4 << 20,
            bodies: 64 << 20,
            body_time: Duration::from_secs(30),
            connections: 1024,
            // Proxies keep a connection that is idle for 60 s (nginx), and lose a request where the server closes it first.
            head_time: Duration::from_secs(75),
            write_time: Duration::from_secs(30),
            queue: 256,
            // 8,000 tokens with 20 alternatives to each, or 28,000 with 5.
            answer: 16 << 20,
            // Half a minute of 600 tokens a second with 20 alternatives each, which is as long as a reader may pause.
            unread: 8 << 20,
            choices: 16,
            // Kubernetes kills a pod 30 s after it has asked it to end, unless it was told otherwise.
            drain: Duration::from_secs(25),
            owned_by: "gristmill".into(),
            keep: None,
            batch_invariant: false,
        }
    }
}
