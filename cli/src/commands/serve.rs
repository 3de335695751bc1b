//! `gristmill serve`.

use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::model::{Model, warn};
use clap::Args;
use gristmill_llm::language;
use gristmill_server::{Config, Server, Text};
use std::net::{IpAddr, Ipv4Addr};

const NOTES: &str = "\
Examples:
  gristmill serve                                  the demo model, on http://127.0.0.1:8080
  gristmill serve MODEL.gguf --port 9000 --ctx 16384
  GRISTMILL_API_KEY=secret gristmill serve MODEL.gguf --host 0.0.0.0

Any client of OpenAI's interface works with the base URL http://127.0.0.1:8080/v1; a browser finds a chat page at the root.
Requests are answered one at a time, clients by turns. /health and /metrics (Prometheus) are for whoever watches.";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// A .gguf file, or synth:PRESET:QUANT [default: the demo model]
    model: Option<String>,
    /// Port to listen on; 0 for any that is free
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Address to listen on; 0.0.0.0 for all, which lets others in
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// What clients must send as their key [default: $GRISTMILL_API_KEY, or none]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// What clients call the model [default: the file's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Most requests that wait; more are refused
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Limits")]
    queue: usize,
    /// Most bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, help_heading = "Limits")]
    max_body: usize,
    /// Memory for earlier prompts, MiB [default: four whole contexts, within an eighth of the free memory]
    #[arg(long, value_name = "MIB", help_heading = "Limits")]
    keep: Option<usize>,
    #[command(flatten)]
    common: Common,
}

pub fn run(options: Options) -> Result {
    let key = options.api_key.or_else(|| std::env::var("GRISTMILL_API_KEY").ok());
    if key.as_ref().is_some_and(|key| key.trim().is_empty()) {
        return Err(Failure::usage("the API key is empty", "leave --api-key and GRISTMILL_API_KEY out for none"));
    }
    let open = !options.host.is_loopback() && key.is_none();
    let defaults = Config::default();
    // The port first: it is cheap to refuse.
    let server = Server::bind(Config {
        host: options.host,
        port: options.port,
        api_key: key,
        body: options.max_body,
        queue: options.queue,
        keep: options.keep.map(|mib| mib.saturating_mul(1 << 20)),
        ..defaults
    })?;
    let model = Model::open(options.model.as_deref())?;
    let tokenizer = model.tokenizer()?;
    let (template, why) = language::template(model.file.metadata(), &tokenizer)?;
    warn(why.as_slice());
    let (sampling, ignored) = language::sampling(model.file.metadata());
    warn(&ignored);
    let engine = model.load(&options.common, None)?;
    let name = options.name.unwrap_or_else(|| model.name.trim_end_matches(".gguf").to_owned());
    if open {
        say!("warning: whoever reaches {} can use this server: there is no --api-key", server.address());
    }
    say!("{name}, {} tokens of context", engine.context());
    say!("chat: http://{0}/   API: http://{0}/v1   (Ctrl-C ends)", server.address());
    server.run(Text { name, tokenizer, template, sampling }, engine)?;
    Ok(())
}
