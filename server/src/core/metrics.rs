//! Prometheus metrics: under names of this server, and, for the load that routers balance by, under
//! vLLM's names, which all routers read.

use crate::core::draft_metrics::{DRAFTS, DraftCounters, DraftFamilies};
use crate::core::load::Load;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;

/// Content type of `/metrics`.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Label of this server's metrics.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Label {
    model: String,
}

/// Labels of a replica's metrics.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ReplicaLabel {
    model: String,
    replica: u32,
    device: String,
}

/// Label of the metrics under vLLM's names.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ModelName {
    model_name: String,
}

/// Load metrics under vLLM's names, which the Kubernetes Gateway API, llm-d and other routers read.
struct RouterMetrics {
    registry: Registry,
    running: Family<ModelName, Gauge>,
    waiting: Family<ModelName, Gauge>,
    usage: Family<ModelName, Gauge<f64, AtomicU64>>,
}

impl Default for RouterMetrics {
    fn default() -> RouterMetrics {
        let mut registry = Registry::default();
        let (running, waiting, usage) = (Family::default(), Family::default(), Family::default());
        registry.register(
            "vllm:num_requests_running",
            "Running requests",
            running.clone(),
        );
        registry.register(
            "vllm:num_requests_waiting",
            "Requests in the queue",
            waiting.clone(),
        );
        let help = "Fraction of the KV cache used by unfinished requests";
        registry.register("vllm:kv_cache_usage_perc", help, usage.clone());
        RouterMetrics {
            registry,
            running,
            waiting,
            usage,
        }
    }
}

impl RouterMetrics {
    fn set(&self, name: &str, load: &Load) {
        let label = ModelName {
            model_name: name.to_owned(),
        };
        self.running.get_or_create(&label).set(load.running as i64);
        self.waiting.get_or_create(&label).set(load.waiting as i64);
        self.usage.get_or_create(&label).set(load.usage());
    }
}

/// Metrics of the server and of all models; cheap to update from any thread.
pub struct Metrics {
    registry: Registry,
    /// Open connections at present.
    pub connections: Gauge,
    /// 1 once the engine has failed for good.
    pub engine_failed: Gauge,
    models: Families,
    replicas: ReplicaFamilies,
    routers: RouterMetrics,
}

/// Metrics of one replica of a model. The model's own gauges are their sums.
#[derive(Clone)]
pub struct ReplicaMetrics {
    /// 1 while the replica serves.
    pub up: Gauge,
    /// Requests that run at present.
    pub running: Gauge,
    /// Maximum concurrent sequences while it is loaded.
    pub slots: Gauge,
    /// Bytes of memory at present, without cached prefixes.
    pub bytes: Gauge,
    /// Bytes of cached prefixes at present.
    pub kept_bytes: Gauge,
    /// KV cache pages that sequences hold at present.
    pub pages: Gauge,
    /// KV cache pages while it is loaded.
    pub pages_total: Gauge,
    /// Pages that were held when it was last idle; more than zero is a leak.
    pub pages_leaked: Gauge,
    /// Pages of earlier prompts in the host KV cache at present.
    pub pages_away: Gauge,
    /// Requests that it took from the queue.
    pub requests: Counter,
    /// Prompt tokens that were computed.
    pub prompt_tokens: Counter,
    /// Prompt tokens found in its prefix cache.
    pub cached_tokens: Counter,
    /// Tokens that were generated.
    pub answer_tokens: Counter,
}

impl ReplicaMetrics {
    /// Sets all gauges to zero: the replica has left.
    pub fn clear(&self) {
        self.up.set(0);
        SUMS.iter()
            .for_each(|(_, of_replica)| _ = of_replica(self).set(0));
    }
}

/// Metrics of one model.
#[derive(Clone)]
pub struct ModelMetrics {
    /// Requests that were accepted.
    pub requests: Counter,
    /// Requests that were refused because the queue was full.
    pub refused: Counter,
    /// Running requests that were cancelled: the client disconnected, or the server was closing.
    pub abandoned: Counter,
    /// Requests that ended with an error.
    pub failed: Counter,
    /// Prompt tokens that were computed.
    pub prompt_tokens: Counter,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: Counter,
    /// Tokens that were generated.
    pub answer_tokens: Counter,
    /// Generated tokens for which all logits were copied to the host.
    pub logit_rows: Counter,
    /// Steps of the batch: all steps, mixed steps with a prefill chunk, and steps that were started
    /// asynchronously, before the previous step's tokens were read.
    pub steps: [Counter; 3],
    /// Chosen experts that the GPU held, those that another device computed, and experts copied to
    /// the GPU.
    pub experts: [Counter; 3],
    /// Tokens that were run as drafts, and those of them that were chosen.
    pub drafts: DraftCounters,
    /// Times that the model was loaded.
    pub loads: Counter,
    /// Times that loading failed.
    pub load_failures: Counter,
    /// Requests in the queue at present.
    pub waiting: Gauge,
    /// Requests that run at present.
    pub running: Gauge,
    /// 1 while the model is loaded.
    pub loaded: Gauge,
    /// Bytes of memory at present, without cached prefixes.
    pub bytes: Gauge,
    /// Bytes of cached prefixes at present.
    pub kept_bytes: Gauge,
    /// Maximum concurrent sequences while the model is loaded.
    pub slots: Gauge,
    /// KV cache pages that sequences hold at present.
    pub pages: Gauge,
    /// KV cache pages while the model is loaded.
    pub pages_total: Gauge,
    /// Pages that were held when the model was last idle; more than zero is a leak.
    pub pages_leaked: Gauge,
    /// Pages of earlier prompts in the host KV cache at present.
    pub pages_away: Gauge,
    /// Pages swapped in from the host KV cache.
    pub pages_swapped_in: Counter,
    /// Times that a sequence was preempted.
    pub preempted: Counter,
    /// KV cache tokens of running requests at present.
    pub used_tokens: Gauge,
    /// KV cache capacity in tokens.
    pub room_tokens: Gauge,
    /// Seconds that requests spent in the queue.
    pub queue_time: Histogram,
    /// Seconds from the arrival of a request to its first token.
    pub first_token_time: Histogram,
    /// Seconds of each token after the first.
    pub token_time: Histogram,
    /// Seconds from the arrival of a request to its end.
    pub request_time: Histogram,
}

impl ModelMetrics {
    /// Sets the gauges that are sums over the replicas.
    pub fn sum<'r>(&self, replicas: impl Iterator<Item = &'r ReplicaMetrics>) {
        let replicas: Vec<&ReplicaMetrics> = replicas.collect();
        for (of_model, of_replica) in SUMS {
            let values = replicas.iter().map(|replica| of_replica(replica).get());
            of_model(self).set(values.sum());
        }
    }
}

/// A gauge of a model, and the gauge of its replicas that it is the sum of.
type Sum = (fn(&ModelMetrics) -> &Gauge, fn(&ReplicaMetrics) -> &Gauge);

const SUMS: [Sum; 8] = [
    (|m| &m.running, |r| &r.running),
    (|m| &m.slots, |r| &r.slots),
    (|m| &m.bytes, |r| &r.bytes),
    (|m| &m.kept_bytes, |r| &r.kept_bytes),
    (|m| &m.pages, |r| &r.pages),
    (|m| &m.pages_total, |r| &r.pages_total),
    (|m| &m.pages_leaked, |r| &r.pages_leaked),
    (|m| &m.pages_away, |r| &r.pages_away),
];

/// The metrics of [`ReplicaMetrics`] for all replicas.
struct ReplicaFamilies {
    gauges: [Family<ReplicaLabel, Gauge>; 9],
    counters: [Family<ReplicaLabel, Counter>; 4],
}

/// Names and help texts of a replica's gauges.
const REPLICA_GAUGES: [(&str, &str); 9] = [
    ("replica_up", "1 while the replica serves requests"),
    (
        "replica_requests_running",
        "Running requests of the replica",
    ),
    (
        "replica_requests_running_most",
        "Most concurrent sequences of the replica",
    ),
    (
        "replica_bytes",
        "Bytes of weights, KV cache and activations of the replica",
    ),
    (
        "replica_prefix_cache_bytes",
        "Bytes of the replica's prefix cache",
    ),
    (
        "replica_cache_pages_used",
        "KV cache pages that the replica's sequences hold",
    ),
    ("replica_cache_pages", "KV cache pages of the replica"),
    (
        "replica_cache_pages_leaked",
        "Cache pages of the replica that were held when it was last idle",
    ),
    (
        "replica_cache_pages_host",
        "Pages of the replica's prefix cache in host memory",
    ),
];

/// Names and help texts of a replica's counters.
const REPLICA_COUNTERS: [(&str, &str); 4] = [
    (
        "replica_requests",
        "Requests that the replica took from the queue",
    ),
    (
        "replica_prompt_tokens",
        "Prompt tokens that the replica computed by prefill",
    ),
    (
        "replica_prompt_tokens_cached",
        "Prompt tokens found in the replica's prefix cache",
    ),
    (
        "replica_generated_tokens",
        "Tokens that the replica generated",
    ),
];

impl ReplicaFamilies {
    fn registered(registry: &mut Registry) -> ReplicaFamilies {
        let gauges = REPLICA_GAUGES.map(|(name, help)| {
            let gauge = Family::default();
            registry.register(name, help, Family::clone(&gauge));
            gauge
        });
        let counters = REPLICA_COUNTERS.map(|(name, help)| {
            let counter = Family::default();
            registry.register(name, help, Family::clone(&counter));
            counter
        });
        ReplicaFamilies { gauges, counters }
    }
    fn metrics(&self, label: &ReplicaLabel) -> ReplicaMetrics {
        let gauges = self
            .gauges
            .each_ref()
            .map(|of| of.get_or_create_owned(label));
        let [
            up,
            running,
            slots,
            bytes,
            kept_bytes,
            pages,
            pages_total,
            leaked,
            away,
        ] = gauges;
        let counters = self.counters.each_ref();
        let counters = counters.map(|of| of.get_or_create_owned(label));
        let [requests, prompt_tokens, cached_tokens, answer_tokens] = counters;
        ReplicaMetrics {
            up,
            running,
            slots,
            bytes,
            kept_bytes,
            pages,
            pages_total,
            pages_leaked: leaked,
            pages_away: away,
            requests,
            prompt_tokens,
            cached_tokens,
            answer_tokens,
        }
    }
}

/// The metrics of [`ModelMetrics`] for all models.
struct Families {
    requests: Family<Label, Counter>,
    refused: Family<Label, Counter>,
    abandoned: Family<Label, Counter>,
    failed: Family<Label, Counter>,
    prompt_tokens: Family<Label, Counter>,
    cached_tokens: Family<Label, Counter>,
    answer_tokens: Family<Label, Counter>,
    logit_rows: Family<Label, Counter>,
    steps: [Family<Label, Counter>; 3],
    experts: [Family<Label, Counter>; 3],
    drafts: DraftFamilies,
    loads: Family<Label, Counter>,
    load_failures: Family<Label, Counter>,
    waiting: Family<Label, Gauge>,
    running: Family<Label, Gauge>,
    loaded: Family<Label, Gauge>,
    bytes: Family<Label, Gauge>,
    kept_bytes: Family<Label, Gauge>,
    slots: Family<Label, Gauge>,
    pages: Family<Label, Gauge>,
    pages_total: Family<Label, Gauge>,
    pages_leaked: Family<Label, Gauge>,
    pages_away: Family<Label, Gauge>,
    pages_swapped_in: Family<Label, Counter>,
    preempted: Family<Label, Counter>,
    used_tokens: Family<Label, Gauge>,
    room_tokens: Family<Label, Gauge>,
    queue_time: Histograms,
    first_token_time: Histograms,
    token_time: Histograms,
    request_time: Histograms,
}

/// Histograms with a label for each model.
type Histograms = Family<Label, Histogram, fn() -> Histogram>;

/// Histogram of seconds with 15 buckets, from 1 ms to 16 s by factors of two.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// Histogram of seconds with 15 buckets, from 0.1 ms to 1.6 s by factors of two.
fn short() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 15))
}

/// Registers families in the order in which `/metrics` lists them.
struct Register<'r>(&'r mut Registry);

impl Register<'_> {
    fn counter<L>(&mut self, name: &str, help: &str) -> Family<L, Counter>
    where
        L: EncodeLabelSet + Clone + Hash + Eq + Send + Sync + Debug + 'static,
    {
        let counter = Family::default();
        self.0.register(name, help, Family::clone(&counter));
        counter
    }
    /// Registers a counter under its name and, for one release, under the name that it had before.
    fn counter_with_alias(
        &mut self,
        name: &str,
        alias: &str,
        help: &str,
    ) -> Family<Label, Counter> {
        let counter = self.counter(name, help);
        self.0.register(alias, help, Family::clone(&counter));
        counter
    }
    fn gauge(&mut self, name: &str, help: &str) -> Family<Label, Gauge> {
        let gauge = Family::default();
        self.0.register(name, help, Family::clone(&gauge));
        gauge
    }
    fn histogram(&mut self, name: &str, help: &str, make: fn() -> Histogram) -> Histograms {
        let histogram = Histograms::new_with_constructor(make);
        self.0
            .register_with_unit(name, help, Unit::Seconds, histogram.clone());
        histogram
    }
}

impl Families {
    fn registered(r: &mut Register) -> Families {
        Families {
            requests: r.counter("requests", "Requests accepted"),
            refused: r.counter(
                "requests_refused",
                "Requests refused because the queue was full",
            ),
            abandoned: r.counter("requests_abandoned", "Requests cancelled while they ran"),
            failed: r.counter("requests_failed", "Requests that failed"),
            prompt_tokens: r.counter("prompt_tokens", "Prompt tokens computed by prefill"),
            cached_tokens: r.counter(
                "prompt_tokens_cached",
                "Prompt tokens found in the prefix cache",
            ),
            answer_tokens: r.counter("generated_tokens", "Tokens generated"),
            logit_rows: r.counter("logit_rows_read", OF_LOGIT_ROWS),
            loads: r.counter("model_loads", "Successful loads of the model"),
            steps: STEPS.map(|(name, help)| r.counter(name, help)),
            experts: EXPERTS.map(|(name, help)| r.counter(name, help)),
            drafts: DRAFTS.map(|(name, help)| r.counter(name, help)),
            pages_swapped_in: r.counter_with_alias(
                "kv_pages_swapped_in",
                "cache_pages_brought_back",
                OF_PAGES_SWAPPED_IN,
            ),
            preempted: r.counter("requests_preempted", OF_PREEMPTED),
            load_failures: r.counter("model_load_failures", "Failed loads of the model"),
            waiting: r.gauge("requests_waiting", "Requests in the queue"),
            running: r.gauge("requests_running", "Running requests"),
            loaded: r.gauge("model_loaded", "1 while the model is loaded"),
            bytes: r.gauge("model_bytes", OF_MODEL_BYTES),
            kept_bytes: r.gauge("prefix_cache_bytes", "Bytes of the prefix cache"),
            slots: r.gauge("requests_running_most", OF_SLOTS),
            pages: r.gauge(
                "cache_pages_used",
                "Pages of the KV cache that running sequences hold",
            ),
            pages_total: r.gauge(
                "cache_pages",
                "Pages of the KV cache; 0 while the model is not loaded",
            ),
            pages_leaked: r.gauge("cache_pages_leaked", OF_PAGES_LEAKED),
            pages_away: r.gauge(
                "cache_pages_host",
                "Pages of the prefix cache in host memory",
            ),
            used_tokens: r.gauge("cache_tokens", "KV cache tokens of unfinished requests"),
            room_tokens: r.gauge("cache_tokens_room", "Capacity of the KV cache in tokens"),
            queue_time: r.histogram("queue", "Time in the queue", seconds),
            first_token_time: r.histogram("first_token", "Time to first token", seconds),
            token_time: r.histogram("token", "Time per token after the first", short),
            request_time: r.histogram(
                "request",
                "Time from a request's arrival to its end",
                seconds,
            ),
        }
    }
}

/// Counters of batched steps.
const STEPS: [(&str, &str); 3] = [
    ("steps", "Batched steps"),
    ("steps_mixed", "Batched steps that included a prefill chunk"),
    (
        "steps_ahead",
        "Batched steps started before the previous step's tokens were read",
    ),
];

/// Counters of cached experts.
const EXPERTS: [(&str, &str); 3] = [
    ("expert_cache_hits", "Chosen experts that the GPU held"),
    (
        "expert_cache_misses",
        "Chosen experts that another device computed",
    ),
    ("expert_cache_copies", "Experts copied to the GPU"),
];

// Help texts that do not fit on one line with their metric.
const OF_LOGIT_ROWS: &str = "Tokens of batched steps that the host sampled from all logits";
const OF_PAGES_SWAPPED_IN: &str = "KV cache pages swapped in from host memory";
const OF_PREEMPTED: &str = "Sequences preempted and recomputed later";
const OF_MODEL_BYTES: &str = "Bytes of weights, KV cache and activations of the loaded model";
const OF_SLOTS: &str = "Most concurrent sequences; 0 while the model is not loaded";
const OF_PAGES_LEAKED: &str = "Cache pages (KV, sliding window, host) still held when the model was last idle; 0 unless leaked";

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("gristmill");
        let (connections, engine_failed) = (Gauge::default(), Gauge::default());
        registry.register("connections", "Open connections", connections.clone());
        registry.register(
            "engine_failed",
            "1 after a permanent failure of the engine",
            engine_failed.clone(),
        );
        registry.register(
            "build",
            "Version of the server",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        let models = Families::registered(&mut Register(&mut registry));
        let replicas = ReplicaFamilies::registered(&mut registry);
        Metrics {
            registry,
            connections,
            engine_failed,
            models,
            replicas,
            routers: RouterMetrics::default(),
        }
    }
}

impl Metrics {
    /// Returns the metrics of a model, which `/metrics` lists from now on.
    pub fn model(&self, name: &str) -> ModelMetrics {
        let (label, all) = (
            Label {
                model: name.to_owned(),
            },
            &self.models,
        );
        ModelMetrics {
            requests: all.requests.get_or_create_owned(&label),
            refused: all.refused.get_or_create_owned(&label),
            abandoned: all.abandoned.get_or_create_owned(&label),
            failed: all.failed.get_or_create_owned(&label),
            prompt_tokens: all.prompt_tokens.get_or_create_owned(&label),
            cached_tokens: all.cached_tokens.get_or_create_owned(&label),
            answer_tokens: all.answer_tokens.get_or_create_owned(&label),
            logit_rows: all.logit_rows.get_or_create_owned(&label),
            steps: all
                .steps
                .each_ref()
                .map(|steps| steps.get_or_create_owned(&label)),
            drafts: DraftCounters::new(name, &all.drafts),
            experts: all
                .experts
                .each_ref()
                .map(|experts| experts.get_or_create_owned(&label)),
            loads: all.loads.get_or_create_owned(&label),
            load_failures: all.load_failures.get_or_create_owned(&label),
            waiting: all.waiting.get_or_create_owned(&label),
            running: all.running.get_or_create_owned(&label),
            loaded: all.loaded.get_or_create_owned(&label),
            bytes: all.bytes.get_or_create_owned(&label),
            kept_bytes: all.kept_bytes.get_or_create_owned(&label),
            slots: all.slots.get_or_create_owned(&label),
            pages: all.pages.get_or_create_owned(&label),
            pages_total: all.pages_total.get_or_create_owned(&label),
            pages_leaked: all.pages_leaked.get_or_create_owned(&label),
            pages_away: all.pages_away.get_or_create_owned(&label),
            pages_swapped_in: all.pages_swapped_in.get_or_create_owned(&label),
            preempted: all.preempted.get_or_create_owned(&label),
            used_tokens: all.used_tokens.get_or_create_owned(&label),
            room_tokens: all.room_tokens.get_or_create_owned(&label),
            queue_time: all.queue_time.get_or_create_owned(&label),
            first_token_time: all.first_token_time.get_or_create_owned(&label),
            token_time: all.token_time.get_or_create_owned(&label),
            request_time: all.request_time.get_or_create_owned(&label),
        }
    }
    /// Returns the metrics of replica `number` of a model, which `/metrics` lists from now on.
    pub fn replica(&self, model: &str, number: usize, device: &str) -> ReplicaMetrics {
        self.replicas.metrics(&ReplicaLabel {
            model: model.to_owned(),
            replica: number as u32,
            device: device.to_owned(),
        })
    }
    /// Sets the load gauges of a model.
    pub fn set_load(&self, name: &str, of: &ModelMetrics, load: &Load) {
        of.waiting.set(load.waiting as i64);
        of.used_tokens.set(load.used as i64);
        of.room_tokens.set(load.room as i64);
        self.routers.set(name, load);
    }
    /// Returns all metrics in OpenMetrics' text format.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = text::encode_registry(&mut out, &self.registry)
            .and_then(|()| text::encode_registry(&mut out, &self.routers.registry))
            .and_then(|()| text::encode_eof(&mut out));
        out
    }
}
