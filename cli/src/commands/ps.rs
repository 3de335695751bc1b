//! `gristmill ps`: models that a running server has loaded.

use crate::failure::{Result, printable};
use crate::size::size;
use clap::Args;
use gristmill_hub::running;
use serde_json::Value;
use std::io::{self, Write};

const NOTES: &str = "\
Examples:
  gristmill ps               models of the server on port 8080
  gristmill ps --port 9000   of a server on another port
  gristmill ps --json        one object per line, for programs";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct PsArgs {
    /// Port of the server
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Address or host name of the server
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// API key of the server [default: $GRISTMILL_API_KEY, or none]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Print one JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(options: PsArgs) -> Result {
    let key = options.api_key.or_else(|| std::env::var("GRISTMILL_API_KEY").ok());
    let host = match options.host.contains(':') && !options.host.starts_with('[') {
        true => format!("[{}]", options.host),
        false => options.host,
    };
    let models = running(&format!("{host}:{}", options.port), key.as_deref())?;
    let mut out = io::stdout().lock();
    if options.json {
        for model in &models {
            writeln!(out, "{model}")?;
        }
        return Ok(());
    }
    if models.is_empty() {
        writeln!(out, "no model is loaded; the first request loads one")?;
        return Ok(());
    }
    let text = |model: &Value, key: &str| printable(model[key].as_str().unwrap_or("-"));
    let width = models.iter().map(|m| text(m, "name").chars().count()).max().unwrap_or(0).max(4);
    writeln!(out, "{:width$}  {:>9}  {:>7}  UNTIL", "NAME", "SIZE", "CONTEXT")?;
    for model in &models {
        let context = model["context_length"].as_u64().map_or("-".into(), |n| n.to_string());
        let bytes = model["size"].as_u64().map_or("-".into(), size);
        writeln!(out, "{:width$}  {bytes:>9}  {context:>7}  {}", text(model, "name"), until(&text(model, "expires_at")))?;
    }
    Ok(())
}

/// The time at which a model is unloaded; servers write a year far ahead for none.
fn until(time: &str) -> &str {
    match time.get(..4).and_then(|year| year.parse::<u32>().ok()) {
        Some(year) if year >= 2200 || year <= 1 => "memory is needed",
        _ => time,
    }
}
