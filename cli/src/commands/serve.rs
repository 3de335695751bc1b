//! `gristmill serve`: the HTTP server.

use crate::failure::{Failure, Result, printable, some_of};
use crate::flags::Common;
use crate::model_arg::ModelFlags;
use crate::replica_devices::ReplicaDevices;
use crate::sampler;
use crate::serve_models::{self, ServedModels};
use crate::speculation::Speculation;
use clap::{Args, ValueHint};
use gristmill_llm::pooling::PoolingKind;
use gristmill_server::{Config, ModelSpec, Notice, Offer, Server};
use std::cell::OnceCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

const NOTES: &str = "\
Examples:
  gristmill serve           the demo model on http://127.0.0.1:8080
  gristmill serve MODEL.gguf --port 9000 --ctx 16384
  gristmill serve -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -np 4 -a qwen
  gristmill serve MODELS/   every model in a folder, loaded on first request
  gristmill serve MODEL.gguf --device cuda:0,cuda:1   a replica on each of two GPUs, or layers
  GRISTMILL_API_KEY=secret gristmill serve MODEL.gguf --host 0.0.0.0

OpenAI clients use the base URL http://127.0.0.1:8080/v1, Anthropic and Ollama clients
http://127.0.0.1:8080. The chat page is at the root. With several models, `model` of a request
selects one and /v1/models lists them; a model is loaded on its first request, and the least
recently used one is evicted when memory runs out. Continuous batching runs up to --parallel
sequences per model; queued requests are scheduled round-robin per client. /health returns 503
until a single model is loaded; /metrics is for Prometheus.";

const HELP: &str = concat!(
    "Models: .gguf files, folders of them, hub repositories ORG/REPO[:QUANT], short names (`gristmill list`), ",
    "demo (built in), or synth:PRESET:QUANT (random weights) [default: demo]"
);

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct ServeArgs {
    #[arg(value_hint = ValueHint::AnyPath, value_name = "MODEL", help = HELP)]
    models: Vec<String>,
    #[command(flatten)]
    flags: ModelFlags,
    /// Port; 0 for any free one
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Address or host name to listen on; 0.0.0.0 for all interfaces
    #[arg(long, default_value = "127.0.0.1", value_parser = host, value_hint = ValueHint::Hostname)]
    host: Host,
    /// Port of vLLM's gRPC worker protocol, with KV events, for routers; 0 for any free one; for a
    /// single model [default: none]
    #[arg(long, value_name = "PORT")]
    grpc_port: Option<u16>,
    #[command(flatten)]
    speculation: Speculation,
    /// API key that clients must send [default: $GRISTMILL_API_KEY, or none]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Model name in the API, for a single model [default: the file's name]
    #[arg(short = 'a', long, alias = "alias", value_name = "NAME")]
    name: Option<String>,
    /// Additional Host header to accept, such as that of a reverse proxy; repeatable
    #[arg(long, value_name = "NAME")]
    allowed_host: Vec<String>,
    /// Allowed CORS origin, such as http://localhost:3000; * for all; repeatable [default: none]
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    cors: Vec<String>,
    /// `owned_by` of the models in /v1/models, by which some routers detect vllm or sglang
    #[arg(long, value_name = "NAME", default_value = "gristmill")]
    owned_by: String,
    /// Answer requests for unknown model names with the loaded model, or else the first one
    #[arg(long)]
    any_model: bool,
    /// Log each request to standard error, with its x-request-id
    #[arg(long)]
    log: bool,
    /// Maximum tokens of reasoning, after which the answer begins, of requests that set none; 0 for
    /// none, -1 for no limit [default: -1]
    #[arg(long, value_name = "N", value_parser = sampler::count, allow_negative_numbers = true)]
    reasoning_budget: Option<usize>,
    /// Message before the end of reasoning that is cut off, of requests that set none
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    reasoning_budget_message: Option<String>,
    /// Batch-invariant mode: output does not depend on concurrent requests; decode is slower at
    /// small batches
    #[arg(long, conflicts_with = "no_batch_invariance")]
    batch_invariant: bool,
    // The default; kept for scripts of earlier releases.
    #[arg(long, hide = true)]
    no_batch_invariance: bool,
    // llama-server's; /metrics is always served.
    #[arg(long, hide = true)]
    metrics: bool,
    /// Pooling of embeddings: none, mean, cls, last or rank [default: the file's `pooling_type`; of
    /// generative models a mean]
    #[arg(long, value_name = "KIND", value_parser = PoolingKind::from_str)]
    pooling: Option<PoolingKind>,
    // llama-server's; both endpoints are always served, and the file tells a reranker.
    #[arg(long, hide = true, alias = "embedding")]
    embeddings: bool,
    // llama-server's short form of `--pooling rank`.
    #[arg(long, hide = true, alias = "rerank", conflicts_with = "pooling")]
    reranking: bool,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    common: Common,
}

/// Limits of the server.
#[derive(Args)]
#[command(next_help_heading = "Limits")]
struct LimitFlags {
    /// -np N: maximum concurrent sequences per model, of each replica; their KV cache takes at most
    /// half of the free memory [default: 8, on a GPU 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    parallel: Option<u16>,
    /// Maximum queued requests per model; further ones are refused
    #[arg(
        long, value_name = "N", default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    queue: u32,
    /// Maximum request body, in bytes
    #[arg(
        long, value_name = "BYTES", default_value_t = 4 << 20,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    max_body: u32,
    /// Maximum number of loaded models [default: as many as memory holds]
    #[arg(
        long, alias = "models-loaded", value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    max_loaded_models: Option<u16>,
    /// Host KV cache per model, in MB: pages evicted from the device's KV cache [default: four
    /// contexts, within an eighth of the free memory]
    #[arg(long, alias = "keep", value_name = "MB")]
    host_cache_mb: Option<usize>,
    /// Graceful-shutdown timeout after SIGTERM or Ctrl-C; a second signal ends at once
    #[arg(long, alias = "drain", value_name = "SECONDS", default_value_t = 25)]
    shutdown_timeout: u32,
}

/// Address to listen on.
#[derive(Clone, Debug)]
struct Host {
    address: IpAddr,
    /// The host name as given; `None` for a literal address.
    name: Option<String>,
}

fn host(text: &str) -> std::result::Result<Host, String> {
    if let Ok(address) = text.trim_matches(['[', ']']).parse() {
        return Ok(Host { address, name: None });
    }
    let name = Some(text.to_owned());
    // Independent of the resolver.
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(Host { address: Ipv4Addr::LOCALHOST.into(), name });
    }
    let unknown = |why: String| format!("no address of that name ({why}); try 127.0.0.1, or 0.0.0.0 for all");
    let found: Vec<_> = (text, 0).to_socket_addrs().map_err(|error| unknown(error.to_string()))?.collect();
    let address = found.iter().find(|address| address.is_ipv4()).or(found.first());
    address.map(|address| Host { address: address.ip(), name }).ok_or_else(|| unknown("nothing was found".into()))
}

/// Parses an origin: a scheme and a host, without a path.
fn origin(text: &str) -> std::result::Result<String, String> {
    let host = text.split_once("://").map(|(_, host)| host.trim_end_matches('/'));
    match host {
        _ if text == "*" => Ok(text.into()),
        Some(host) if !host.is_empty() && !host.contains('/') && text.is_ascii() => Ok(text.into()),
        _ => Err("an origin is a scheme and a host, such as http://localhost:3000; * for all".into()),
    }
}

/// An address at which a browser reaches the server: loopback if it listens on all interfaces.
fn to_open(listens: SocketAddr) -> SocketAddr {
    let here = match listens.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(here, listens.port())
}

/// Prints the models and the URLs; `context` is that of a single model.
fn say_ready(names: &[String], context: Option<usize>, listens: SocketAddr) {
    match context {
        Some(context) => say!("{}: context of {context} tokens", printable(&names[0])),
        None => say!("{} models, loaded on first request: {}", names.len(), printable(&some_of(names))),
    }
    let address = to_open(listens);
    say!("chat: http://{address}/   API: http://{address}/v1   (Ctrl-C to stop)");
    if address != listens {
        say!("listening on all interfaces, port {}", listens.port());
    }
}

fn say_draining(requests: usize, most: Duration) {
    let s = if requests == 1 { "" } else { "s" };
    say!(
        "shutting down: waiting for {requests} request{s}, at most {} s (Ctrl-C again stops at once)",
        most.as_secs()
    );
}

/// Opens the gRPC port; returns its address.
#[cfg(feature = "grpc")]
fn listen_grpc(server: &mut Server, port: u16) -> Result<SocketAddr> {
    let address = SocketAddr::new(server.address().ip(), port);
    gristmill_grpc::listen(server, address).map_err(|error| {
        let message = format!("cannot listen on {address}: {error}");
        Failure::new(message, "choose another --grpc-port, or 0 for any that is free")
    })
}

#[cfg(not(feature = "grpc"))]
fn listen_grpc(_: &mut Server, _: u16) -> Result<SocketAddr> {
    Err(Failure::usage("this build has no gRPC port", "build with `--features grpc`"))
}

/// Checks that the gRPC port has a single model to serve.
fn check_single(models: &[ModelSpec]) -> Result {
    match models.len() {
        1 => Ok(()),
        many => Err(Failure::usage(
            format!("--grpc-port serves a single model, and there are {many}"),
            "name one model, or leave --grpc-port out",
        )),
    }
}

/// Returns the key that clients must send, from the flag or the environment.
fn api_key(flag: Option<String>) -> Result<Option<String>> {
    let key = flag.or_else(|| std::env::var("GRISTMILL_API_KEY").ok());
    match key.as_ref().is_some_and(|key| key.trim().is_empty()) {
        true => Err(Failure::usage("the API key is empty", "leave --api-key and GRISTMILL_API_KEY out for none")),
        false => Ok(key),
    }
}

pub fn run(options: ServeArgs) -> Result {
    options.common.check_with_replicas()?;
    if options.log {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
    }
    let key = api_key(options.api_key)?;
    let open_to_all = !options.host.address.is_loopback() && key.is_none();
    let defaults = Config::default();
    // The port is bound first: it fails fast, and requests get status 503 while models load.
    let mut server = Server::bind(Config {
        host: options.host.address,
        name: options.host.name,
        allowed_hosts: options.allowed_host,
        cors: options.cors,
        port: options.port,
        api_key: key,
        body: options.limits.max_body as usize,
        queue: options.limits.queue as usize,
        drain: Duration::from_secs(options.limits.shutdown_timeout.into()),
        owned_by: options.owned_by,
        keep: options.limits.host_cache_mb.map(|mb| mb.saturating_mul(1_000_000)),
        batch_invariant: options.batch_invariant,
        reasoning_budget: options.reasoning_budget.filter(|&tokens| tokens != usize::MAX),
        reasoning_budget_message: options.reasoning_budget_message,
        any_model: options.any_model,
        kv_events: options.grpc_port.is_some(),
        ..defaults
    })?;
    let grpc = options.grpc_port.map(|port| listen_grpc(&mut server, port)).transpose()?;
    let (loading, common) = (server.loading(), options.common);
    let devices = OnceCell::new();
    let open = |is_large: &dyn Fn(&ReplicaDevices) -> bool| {
        let opened = ReplicaDevices::open(&common)?;
        let may_divide = opened.all().len() > 1 && common.are_gpus();
        let divides = may_divide && (common.places_parts() || is_large(&opened));
        let opened = Arc::new(if divides { opened.divided() } else { opened });
        opened.tell();
        let _ = devices.set(opened.clone());
        Ok(opened)
    };
    let scanning = |at, of| loading.set("reading model files", at as u64, of as u64);
    let arguments: Vec<String> =
        options.flags.name().map(str::to_owned).into_iter().chain(options.models).collect();
    let pooling = options.pooling.or(options.reranking.then_some(PoolingKind::Rank));
    let (name, speculation, parallel) = (options.name, options.speculation, options.limits.parallel.map(usize::from));
    let served = ServedModels { arguments: &arguments, name, parallel, pooling, speculation };
    let models = serve_models::specs(served, &common, &open, &scanning)?;
    if let Some(address) = grpc {
        check_single(&models)?;
        say!("gRPC: {address}");
    }
    if open_to_all {
        say!("warning: {} is open to the network without an --api-key", server.address());
    }
    let (listens, names) = (server.address(), models.iter().map(|model| model.name.clone()).collect::<Vec<_>>());
    let opened = devices.into_inner();
    let all = opened.iter().flat_map(|devices| devices.all());
    let devices = all.map(|device| device.name.clone()).collect();
    let available = Box::new(move || opened.as_ref().and_then(|devices| devices.available()));
    let tell = move |notice| match notice {
        Notice::Ready(context) => say_ready(&names, context, listens),
        Notice::Draining(requests, most) => say_draining(requests, most),
    };
    let most_loaded = options.limits.max_loaded_models.map(usize::from);
    server.run(Offer { models, devices, most_loaded, available }, tell)?;
    Ok(())
}
