//! `gristmill serve`.

use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::model::{self, Model, warn};
use clap::{Args, ValueHint};
use gristmill_llm::language;
use gristmill_server::{Config, Server, Text};
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

const NOTES: &str = "\
Examples:
  gristmill serve                                  the demo model, on http://127.0.0.1:8080
  gristmill serve MODEL.gguf --port 9000 --ctx 16384
  GRISTMILL_API_KEY=secret gristmill serve MODEL.gguf --host 0.0.0.0

Any client of OpenAI's interface works with the base URL http://127.0.0.1:8080/v1; a browser finds a chat page at the root.
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
    /// Most requests that wait; more are refused
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    queue: u32,
    /// Most bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    max_body: u32,
    /// Memory for earlier prompts, MiB [default: four whole contexts, within an eighth of the free memory]
    #[arg(long, value_name = "MIB", help_heading = "Limits")]
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

pub fn run(options: Options) -> Result {
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
        port: options.port,
        api_key: key,
        body: options.max_body as usize,
        queue: options.queue as usize,
        keep: options.keep.map(|mib| mib.saturating_mul(1 << 20)),
        ..defaults
    })?;
    let model = Model::open(options.model.as_deref())?;
    let tokenizer = model.tokenizer()?;
    let (template, why) = model.template(&tokenizer)?;
    warn(why.as_slice());
    let (sampling, ignored) = language::sampling(model.file.metadata());
    warn(&ignored);
    let engine = model.load(&options.common, None)?;
    let name = options.name.unwrap_or_else(|| model.name.trim_end_matches(".gguf").to_owned());
    if open {
        say!("warning: whoever reaches {} can use this server: there is no --api-key", server.address());
    }
    let (address, context, called) = (server.address(), engine.context(), name.clone());
    let ready = || {
        say!("{}, {context} tokens of context", printable(&called));
        say!("chat: http://{address}/   API: http://{address}/v1   (Ctrl-C ends)");
    };
    server.run(Text { name, tokenizer, template, sampling }, engine, ready)?;
    Ok(())
}
