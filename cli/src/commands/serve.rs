//! `gristmill serve`.

use crate::failure::{Failure, Result, printable, some_of};
use crate::flags::Common;
use crate::offer::{self, Asked};
use clap::{Args, ValueHint};
use gristmill_server::{Config, Notice, Offer, Server};
use std::cell::OnceCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

const NOTES: &str = "\
Examples:
  gristmill serve                                  the demo model, on http://127.0.0.1:8080
  gristmill serve MODEL.gguf --port 9000 --ctx 16384
  gristmill serve MODELS/                          every model in a folder, loaded when it is asked for
  GRISTMILL_API_KEY=secret gristmill serve MODEL.gguf --host 0.0.0.0

Clients of OpenAI's interface work with the base URL http://127.0.0.1:8080/v1, Anthropic's and Ollama's with http://127.0.0.1:8080; a browser finds a chat page at the root.
Of several models, requests choose by `model`, and /v1/models lists them. One is loaded when it is asked for, its requests wait meanwhile, and where
memory is short the least recently used leaves. Each answers several requests at a time, --parallel of them; those that wait are taken client by client. /health and /metrics (Prometheus) are for whoever watches; while
the only model is loaded, /health says so with status 503.";

const HELP: &str = concat!(
    "One model or several, each a .gguf file, a folder of them, ORG/REPO[:QUANT] of the hub, a short name, demo (inside the program), or ",
    "synth:PRESET:QUANT [default: demo]"
);

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    #[arg(value_hint = ValueHint::AnyPath, value_name = "MODEL", help = HELP)]
    models: Vec<String>,
    /// Port to listen on; 0 for any that is free
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Address to listen on, or a name of this machine; 0.0.0.0 for all, which lets others in
    #[arg(long, default_value = "127.0.0.1", value_parser = host, value_hint = ValueHint::Hostname)]
    host: Host,
    /// What clients must send as their key [default: $GRISTMILL_API_KEY, or none]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// What clients call the model, where there is one [default: the file's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Another name that this server is asked by: that of a proxy before it
    #[arg(long, value_name = "NAME")]
    allowed_host: Vec<String>,
    /// Origin whose pages may ask from a browser, such as http://localhost:3000; * for all [default: none]
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    cors: Vec<String>,
    /// Who owns the models in /v1/models: older routers take a server only for vllm or sglang, and look there
    #[arg(long, value_name = "NAME", default_value = "gristmill")]
    owned_by: String,
    /// Write a line for every request to standard error, with its x-request-id
    #[arg(long)]
    log: bool,
    /// Maximum concurrent sequences per model [default: 8, on a GPU 32]. Their pages take half of the free memory at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512), help_heading = "Limits")]
    parallel: Option<u16>,
    /// Seconds for those who are being answered or wait when the server is asked to end (SIGTERM, Ctrl-C); a second time it ends at once
    #[arg(long, value_name = "SECONDS", default_value_t = 25, help_heading = "Limits")]
    drain: u32,
    /// Most requests that wait for each model; more are refused
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    queue: u32,
    /// Most bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    max_body: u32,
    /// Most models that are loaded at a time [default: as many as there is memory for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Limits")]
    models_loaded: Option<u16>,
    /// Host KV cache of each model, for pages that leave the KV cache of a device or of one sequence, MB [default: four whole contexts, within an eighth of the free memory]
    #[arg(long, value_name = "MB", help_heading = "Limits")]
    keep: Option<usize>,
    /// Answer the same text whatever other requests run, as `"batch_invariant": true` asks for one; decode steps are slower while few run
    #[arg(long, conflicts_with = "no_batch_invariance")]
    batch_invariant: bool,
    /// The default: kept for scripts of earlier releases
    #[arg(long, hide = true)]
    no_batch_invariance: bool,
    #[command(flatten)]
    common: Common,
}

/// Where to listen.
#[derive(Clone, Debug)]
struct Host {
    address: IpAddr,
    /// What it was called, where that is no address.
    name: Option<String>,
}

fn host(text: &str) -> std::result::Result<Host, String> {
    if let Ok(address) = text.trim_matches(['[', ']']).parse() {
        return Ok(Host { address, name: None });
    }
    let name = Some(text.to_owned());
    // Whatever a resolver makes of it.
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(Host { address: Ipv4Addr::LOCALHOST.into(), name });
    }
    let unknown = |why: String| format!("no address of that name ({why}); try 127.0.0.1, or 0.0.0.0 for all");
    let found: Vec<_> = (text, 0).to_socket_addrs().map_err(|error| unknown(error.to_string()))?.collect();
    let address = found.iter().find(|address| address.is_ipv4()).or(found.first());
    address.map(|address| Host { address: address.ip(), name }).ok_or_else(|| unknown("nothing was found".into()))
}

/// An origin: a scheme and a host, without a path.
fn origin(text: &str) -> std::result::Result<String, String> {
    let host = text.split_once("://").map(|(_, host)| host.trim_end_matches('/'));
    match host {
        _ if text == "*" => Ok(text.into()),
        Some(host) if !host.is_empty() && !host.contains('/') && text.is_ascii() => Ok(text.into()),
        _ => Err("an origin is a scheme and a host, such as http://localhost:3000; * for all".into()),
    }
}

/// An address that leads to a server which listens there: all addresses are none that one can open.
fn to_open(listens: SocketAddr) -> SocketAddr {
    let here = match listens.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(here, listens.port())
}

/// What models can be asked for, the one there is with its context, and where.
fn say_ready(names: &[String], context: Option<usize>, listens: SocketAddr) {
    match context {
        Some(context) => say!("{}, {context} tokens of context", printable(&names[0])),
        None => say!("{} models, each loaded when it is asked for: {}", names.len(), printable(&some_of(names))),
    }
    let address = to_open(listens);
    say!("chat: http://{address}/   API: http://{address}/v1   (Ctrl-C ends)");
    if address != listens {
        say!("from other machines: port {} of any address of this one", listens.port());
    }
}

pub fn run(options: Options) -> Result {
    if options.log {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
    }
    let key = options.api_key.or_else(|| std::env::var("GRISTMILL_API_KEY").ok());
    if key.as_ref().is_some_and(|key| key.trim().is_empty()) {
        return Err(Failure::usage("the API key is empty", "leave --api-key and GRISTMILL_API_KEY out for none"));
    }
    let open_to_all = !options.host.address.is_loopback() && key.is_none();
    let defaults = Config::default();
    // The port first: it is cheap to refuse, and who asks meanwhile is told to wait.
    let server = Server::bind(Config {
        host: options.host.address,
        name: options.host.name,
        allowed_hosts: options.allowed_host,
        cors: options.cors,
        port: options.port,
        api_key: key,
        body: options.max_body as usize,
        queue: options.queue as usize,
        drain: Duration::from_secs(options.drain.into()),
        owned_by: options.owned_by,
        keep: options.keep.map(|mb| mb.saturating_mul(1_000_000)),
        batch_invariant: options.batch_invariant,
        ..defaults
    })?;
    let (loading, common) = (server.loading(), options.common);
    let device = OnceCell::new();
    let open = || {
        let opened = common.open()?;
        let _ = device.set(opened.device.clone());
        Ok(opened)
    };
    let looking = |at, of| loading.set("looking at models", at as u64, of as u64);
    let asked = Asked { arguments: &options.models, name: options.name, parallel: options.parallel.map(usize::from) };
    let models = offer::specs(asked, &common, &open, &looking)?;
    if open_to_all {
        say!("warning: whoever reaches {} can use this server: there is no --api-key", server.address());
    }
    let (listens, names) = (server.address(), models.iter().map(|model| model.name.clone()).collect::<Vec<_>>());
    let device = device.into_inner();
    let available = Box::new(move || device.as_ref().and_then(|device| device.available()));
    let tell = move |notice| match notice {
        Notice::Ready(context) => say_ready(&names, context, listens),
        Notice::Draining(requests, most) => {
            let s = if requests == 1 { "" } else { "s" };
            say!("ending: {requests} request{s} to answer, for {} s at most (Ctrl-C again ends at once)", most.as_secs());
        }
    };
    server.run(Offer { models, most_loaded: options.models_loaded.map(usize::from), available }, tell)?;
    Ok(())
}
