//! What the server counts, for Prometheus.

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Type of the response that carries them.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whose number it is.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Label {
    model: String,
}

/// What all models have counted. Cheap to use from any thread.
pub struct Metrics {
    registry: Registry,
    /// Connections, now.
    pub connections: Gauge,
    /// 1 once the engine is gone for good.
    pub engine_failed: Gauge,
    models: Families,
}

/// The counters of one model.
#[derive(Clone)]
pub struct ModelMetrics {
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
    /// How often it was loaded.
    pub loads: Counter,
    /// How often it could not be.
    pub load_failures: Counter,
    /// Requests that wait, now.
    pub waiting: Gauge,
    /// Requests that are being answered, now.
    pub running: Gauge,
    /// 1 while it is loaded.
    pub loaded: Gauge,
    /// Bytes that it takes, now, without prefixes.
    pub bytes: Gauge,
    /// Bytes of prefixes that are kept, now.
    pub kept_bytes: Gauge,
    /// Pages of the cache that sequences have, now.
    pub pages: Gauge,
    /// Pages that there are; none where answers are made one by one.
    pub pages_total: Gauge,
    /// Positions of sequences that are under way, now.
    pub cached_positions: Gauge,
    /// How often a sequence had to give its pages up for others.
    pub preempted: Counter,
    /// Seconds in the queue.
    pub queue_time: Histogram,
    /// Seconds from a request to its first token.
    pub first_token_time: Histogram,
    /// Seconds of a token after the first.
    pub token_time: Histogram,
    /// Seconds of a request in all.
    pub request_time: Histogram,
}

/// The same of all of them.
struct Families {
    requests: Family<Label, Counter>,
    refused: Family<Label, Counter>,
    abandoned: Family<Label, Counter>,
    failed: Family<Label, Counter>,
    prompt_tokens: Family<Label, Counter>,
    cached_tokens: Family<Label, Counter>,
    answer_tokens: Family<Label, Counter>,
    loads: Family<Label, Counter>,
    load_failures: Family<Label, Counter>,
    waiting: Family<Label, Gauge>,
    running: Family<Label, Gauge>,
    loaded: Family<Label, Gauge>,
    bytes: Family<Label, Gauge>,
    kept_bytes: Family<Label, Gauge>,
    pages: Family<Label, Gauge>,
    pages_total: Family<Label, Gauge>,
    cached_positions: Family<Label, Gauge>,
    preempted: Family<Label, Counter>,
    queue_time: Family<Label, Histogram, fn() -> Histogram>,
    first_token_time: Family<Label, Histogram, fn() -> Histogram>,
    token_time: Family<Label, Histogram, fn() -> Histogram>,
    request_time: Family<Label, Histogram, fn() -> Histogram>,
}

/// Seconds from a thousandth, by twos, over four decades.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// Likewise from a ten-thousandth.
fn short() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 15))
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("gristmill");
        let (connections, engine_failed) = (Gauge::default(), Gauge::default());
        registry.register("connections", "Open connections", connections.clone());
        registry.register("engine_failed", "1 once the engine is gone for good", engine_failed.clone());
        let mut counter = |name: &str, help: &str| {
            let counter = Family::<Label, Counter>::default();
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
        let loads = counter("model_loads", "Times that the model was loaded");
        let preempted =
            counter("requests_preempted", "Times that a sequence gave its pages up and was computed again later");
        let load_failures = counter("model_load_failures", "Times that the model could not be loaded");
        let mut gauge = |name: &str, help: &str| {
            let gauge = Family::<Label, Gauge>::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let waiting = gauge("requests_waiting", "Requests in the queue");
        let running = gauge("requests_running", "Requests being answered");
        let loaded = gauge("model_loaded", "1 while the model is loaded");
        let bytes = gauge("model_bytes", "Bytes of weights, cache and activations of the model while it is loaded");
        let kept_bytes = gauge("prefix_cache_bytes", "Bytes of prefixes that are kept");
        let pages = gauge("cache_pages_used", "Pages of the cache that sequences under way have");
        let pages_total = gauge("cache_pages", "Pages of the cache; 0 where answers are made one by one");
        let cached_positions = gauge("cache_positions", "Positions of sequences under way in the cache");
        let mut histogram = |name: &str, help: &str, make: fn() -> Histogram| {
            let histogram = Family::<Label, Histogram, fn() -> Histogram>::new_with_constructor(make);
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
            histogram
        };
        let queue_time = histogram("queue", "Time in the queue", seconds);
        let first_token_time = histogram("first_token", "Time from a request to its first token", seconds);
        let token_time = histogram("token", "Time of a token after the first", short);
        let request_time = histogram("request", "Time from a request to its end", seconds);
        let models = Families {
            requests,
            refused,
            abandoned,
            failed,
            prompt_tokens,
            cached_tokens,
            answer_tokens,
            loads,
            load_failures,
            waiting,
            running,
            loaded,
            bytes,
            kept_bytes,
            pages,
            pages_total,
            cached_positions,
            preempted,
            queue_time,
            first_token_time,
            token_time,
            request_time,
        };
        Metrics { registry, connections, engine_failed, models }
    }
}

impl Metrics {
    /// Those of the model of that name, which are there from now on.
    pub fn model(&self, name: &str) -> ModelMetrics {
        let (label, all) = (Label { model: name.to_owned() }, &self.models);
        ModelMetrics {
            requests: all.requests.get_or_create_owned(&label),
            refused: all.refused.get_or_create_owned(&label),
            abandoned: all.abandoned.get_or_create_owned(&label),
            failed: all.failed.get_or_create_owned(&label),
            prompt_tokens: all.prompt_tokens.get_or_create_owned(&label),
            cached_tokens: all.cached_tokens.get_or_create_owned(&label),
            answer_tokens: all.answer_tokens.get_or_create_owned(&label),
            loads: all.loads.get_or_create_owned(&label),
            load_failures: all.load_failures.get_or_create_owned(&label),
            waiting: all.waiting.get_or_create_owned(&label),
            running: all.running.get_or_create_owned(&label),
            loaded: all.loaded.get_or_create_owned(&label),
            bytes: all.bytes.get_or_create_owned(&label),
            kept_bytes: all.kept_bytes.get_or_create_owned(&label),
            pages: all.pages.get_or_create_owned(&label),
            pages_total: all.pages_total.get_or_create_owned(&label),
            cached_positions: all.cached_positions.get_or_create_owned(&label),
            preempted: all.preempted.get_or_create_owned(&label),
            queue_time: all.queue_time.get_or_create_owned(&label),
            first_token_time: all.first_token_time.get_or_create_owned(&label),
            token_time: all.token_time.get_or_create_owned(&label),
            request_time: all.request_time.get_or_create_owned(&label),
        }
    }
    /// All of them, as text.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}
