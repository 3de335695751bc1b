//! `gristmill serve`.

use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::model::{self, Model, shortest, warn};
use clap::{Args, ValueHint};
use gristmill_llm::engine::Progress;
use gristmill_llm::language;
use gristmill_server::{Config, Server, Text};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

const NOTES: &str = "\
Examples:
  gristmill serve                                  the demo model, on http://127.0.0.1:8080
  gristmill serve MODEL.gguf --port 9000 --ctx 16384
  GRISTMILL_API_KEY=secret gristmill serve MODEL.gguf --host 0.0.0.0

Clients of OpenAI's interface work with the base URL http://127.0.0.1:8080/v1, Anthropic's and Ollama's with http://127.0.0.1:8080; a browser finds a chat page at the root.
Requests are answered one at a time, clients by turns. /health and /metrics (Prometheus) are for whoever watches; while the model is
loaded, /health says so with status 503.";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    #[arg(value_hint = ValueHint::FilePath, help = model::HELP_OR_DEMO)]
    model: Option<String>,
    /// Port to listen on; 0 for any that is free
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Address to listen on, or a name of this machine; 0.0.0.0 for all, which lets others in
    #[arg(long, default_value = "127.0.0.1", value_parser = host, value_hint = ValueHint::Hostname)]
    host: Host,
    /// What clients must send as their key [default: $GRISTMILL_API_KEY, or none]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// What clients call the model [default: the file's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Another name that this server is asked by: that of a proxy before it
    #[arg(long, value_name = "NAME")]
    allowed_host: Vec<String>,
    /// Origin whose pages may ask from a browser, such as http://localhost:3000; * for all [default: none]
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    cors: Vec<String>,
    /// Write a line for every request to standard error
    #[arg(long)]
    log: bool,
    /// Most requests that wait; more are refused
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    queue: u32,
    /// Most bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    max_body: u32,
    /// Memory for earlier prompts, MB [default: four whole contexts, within an eighth of the free memory]
    #[arg(long, value_name = "MB", help_heading = "Limits")]
    keep: Option<usize>,
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

pub fn run(options: Options) -> Result {
    if options.log {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
    }
    let key = options.api_key.or_else(|| std::env::var("GRISTMILL_API_KEY").ok());
    if key.as_ref().is_some_and(|key| key.trim().is_empty()) {
        return Err(Failure::usage("the API key is empty", "leave --api-key and GRISTMILL_API_KEY out for none"));
    }
    let open = !options.host.address.is_loopback() && key.is_none();
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
        keep: options.keep.map(|mb| mb.saturating_mul(1_000_000)),
        ..defaults
    })?;
    let model = Model::open(options.model.as_deref())?;
    let tokenizer = model.tokenizer()?;
    let (template, why) = model.template(&tokenizer)?;
    warn(why.as_slice());
    let (sampling, ignored) = language::sampling(model.file.metadata());
    warn(&ignored);
    model.check_context(&options.common, shortest(&template, &tokenizer, None)?)?;
    let loading = server.loading();
    let engine = model.load_watched(&options.common, None, &|progress| match progress {
        Progress::Loading(done, total) => loading.set("loading weights", done, total),
        Progress::Compiling(done, total) => loading.set("compiling kernels", done as u64, total as u64),
    })?;
    let name = options.name.unwrap_or_else(|| model.name.trim_end_matches(".gguf").to_owned());
    if open {
        say!("warning: whoever reaches {} can use this server: there is no --api-key", server.address());
    }
    let (listens, context, called) = (server.address(), engine.context(), name.clone());
    let ready = || {
        let address = to_open(listens);
        say!("{}, {context} tokens of context", printable(&called));
        say!("chat: http://{address}/   API: http://{address}/v1   (Ctrl-C ends)");
        if address != listens {
            say!("from other machines: port {} of any address of this one", listens.port());
        }
    };
    server.run(Text { name, tokenizer, template, sampling }, engine, ready)?;
    Ok(())
}
