//! What the server counts, for Prometheus.

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Type of the response that carries them.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The counters. Cheap to use from any thread.
pub struct Metrics {
    registry: Registry,
    /// Requests that were taken in.
    pub requests: Counter,
    /// Requests that were refused for lack of room.
    pub refused: Counter,
    /// Requests that were broken off while they were answered: nobody waited any more, or the server was closing.
    pub abandoned: Counter,
    /// Answers that failed.
    pub failed: Counter,
    /// Tokens of prompts that were run.
    pub prompt_tokens: Counter,
    /// Tokens of prompts that were found in the cache.
    pub cached_tokens: Counter,
    /// Tokens of answers.
    pub answer_tokens: Counter,
    /// Requests that wait, now.
    pub waiting: Gauge,
    /// Requests that are being answered, now.
    pub running: Gauge,
    /// Connections, now.
    pub connections: Gauge,
    /// 1 once the engine is gone for good.
    pub engine_failed: Gauge,
    /// Bytes of prefixes that are kept, now.
    pub kept_bytes: Gauge,
    /// Seconds in the queue.
    pub queue_time: Histogram,
    /// Seconds from a request to its first token.
    pub first_token_time: Histogram,
    /// Seconds of a token after the first.
    pub token_time: Histogram,
    /// Seconds of a request in all.
    pub request_time: Histogram,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("gristmill");
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let requests = counter("requests", "Requests taken in");
        let refused = counter("requests_refused", "Requests refused because the queue was full");
        let abandoned = counter("requests_abandoned", "Requests broken off while they were answered");
        let failed = counter("requests_failed", "Requests that failed");
        let prompt_tokens = counter("prompt_tokens", "Tokens of prompts that were run");
        let cached_tokens = counter("prompt_tokens_cached", "Tokens of prompts found in the cache");
        let answer_tokens = counter("generated_tokens", "Tokens generated");
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let waiting = gauge("requests_waiting", "Requests in the queue");
        let running = gauge("requests_running", "Requests being answered");
        let connections = gauge("connections", "Open connections");
        let engine_failed = gauge("engine_failed", "1 once the engine is gone for good");
        let kept_bytes = gauge("prefix_cache_bytes", "Bytes of prefixes that are kept");
        let mut seconds = |name: &str, help: &str, least: f64| {
            // From `least`, by twos, over four decades.
            let histogram = Histogram::new(exponential_buckets(least, 2.0, 15));
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
            histogram
        };
        let queue_time = seconds("queue", "Time in the queue", 0.001);
        let first_token_time = seconds("first_token", "Time from a request to its first token", 0.001);
        let token_time = seconds("token", "Time of a token after the first", 0.0001);
        let request_time = seconds("request", "Time from a request to its end", 0.001);
        Metrics {
            registry,
            requests,
            refused,
            abandoned,
            failed,
            prompt_tokens,
            cached_tokens,
            answer_tokens,
            waiting,
            running,
            connections,
            engine_failed,
            kept_bytes,
            queue_time,
            first_token_time,
            token_time,
            request_time,
        }
    }
}

impl Metrics {
    /// All of them, as text.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}
