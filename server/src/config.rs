//! Server configuration.

use crate::core::limits::Limits;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Listen address, access control and limits of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Listen address; loopback by default.
    pub host: IpAddr,
    /// The host name that the address was given as, if any; on loopback it is accepted as `Host`.
    pub name: Option<String>,
    /// Further `Host` names that a server on loopback accepts, such as those of a reverse proxy.
    pub allowed_hosts: Vec<String>,
    /// Origins of pages that may send requests from a browser (CORS); `*` allows all. Empty by
    /// default.
    pub cors: Vec<String>,
    /// Listen port; 0 picks a free one.
    pub port: u16,
    /// API key that clients must send; `None` accepts all clients.
    pub api_key: Option<String>,
    /// Maximum bytes of a request body.
    pub body: usize,
    /// Maximum bytes of all request bodies in memory, without the first [`Config::SMALL_BODY`] of
    /// each.
    pub bodies: usize,
    /// Maximum time in which a request body must arrive.
    pub body_time: Duration,
    /// Maximum open connections, but at least four times [`Config::queue`]. One address may have
    /// half of them.
    pub connections: usize,
    /// Maximum time until a complete request head, from the opening of the connection or from the
    /// previous response.
    pub head_time: Duration,
    /// Maximum time that a client may stop reading the response. Less than two kilobytes per second
    /// counts as not reading.
    pub write_time: Duration,
    /// Maximum requests in the queue.
    pub queue: usize,
    /// Approximate maximum bytes of a response that is not streamed: text, and log-probabilities as
    /// JSON. At the limit the answer ends.
    pub answer: usize,
    /// Approximate maximum bytes of a stream that the client has not read; beyond it the request is
    /// cancelled.
    pub unread: usize,
    /// Maximum answers to each prompt of a request.
    pub choices: usize,
    /// Maximum tokens of reasoning of requests that set none; `None` is unlimited.
    pub reasoning_budget: Option<usize>,
    /// Message before the end of reasoning that is cut off, of requests that set none; `None` for
    /// the default one.
    pub reasoning_budget_message: Option<String>,
    /// Graceful-shutdown timeout: how long accepted requests continue to be served.
    pub drain: Duration,
    /// `owned_by` of each model in `/v1/models`; some routers detect the engine by it.
    pub owned_by: String,
    /// Bytes of each model's host KV cache; `None` for a share of the memory.
    pub keep: Option<usize>,
    /// Default of requests that do not set `batch_invariant`: their steps run the kernels of the
    /// largest batch.
    pub batch_invariant: bool,
    /// Whether the events of the models' KV caches are recorded, for [`Worker::subscribe`].
    ///
    /// [`Worker::subscribe`]: crate::worker::Worker::subscribe
    pub kv_events: bool,
    /// Whether an unknown model name means the model that is loaded, or the first one.
    pub any_model: bool,
}

impl Config {
    /// Bytes of a body that need no permit; small enough for all connections to hold that many at
    /// once.
    pub const SMALL_BODY: usize = 64 << 10;
    /// Returns whether a client with this API key may send requests.
    pub(crate) fn admits(&self, given: Option<&str>) -> bool {
        let Some(key) = &self.api_key else {
            return true;
        };
        // Comparing hashes takes constant time, regardless of the lengths.
        let same =
            |given: &str| blake3::hash(given.trim().as_bytes()) == blake3::hash(key.as_bytes());
        given.is_some_and(same)
    }
    /// Returns the limits of requests and answers.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            answer: self.answer,
            unread: self.unread,
            choices: self.choices,
            reasoning: self.reasoning_budget,
            reasoning_message: self.reasoning_budget_message.clone(),
        }
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
            // nginx closes an idle upstream connection after 60 s, and loses a request if the
            // server closes it first.
            head_time: Duration::from_secs(75),
            write_time: Duration::from_secs(30),
            queue: 256,
            // 8,000 tokens with 20 alternatives each, or 28,000 with 5.
            answer: 16 << 20,
            // A client may pause for 30 s: this holds 600 tokens per second with 20 alternatives
            // each.
            unread: 8 << 20,
            choices: 16,
            reasoning_budget: None,
            reasoning_budget_message: None,
            // Kubernetes kills a pod 30 s after SIGTERM by default.
            drain: Duration::from_secs(25),
            owned_by: "gristmill".into(),
            keep: None,
            batch_invariant: false,
            kv_events: false,
            any_model: false,
        }
    }
}
