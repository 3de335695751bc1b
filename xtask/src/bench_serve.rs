//! `xtask bench-serve`: load benchmark of OpenAI-compatible servers, run in alternation.
//!
//! A closed loop has a fixed number of clients, each of which sends its next request when the
//! previous one has finished. An open loop sends requests at a given rate, with Poisson arrivals,
//! independent of completions. Prompts are random tokens of a fixed length with a shared prefix.

mod load;
pub mod report;
#[cfg(test)]
mod tests;

use crate::serving::access::Access;
use crate::serving::servers::Named;
use crate::serving::workload::Prompts;
use crate::{machine, shell};
use anyhow::{Result, bail};
use load::{Pace, ServeClient};
use report::{ServeReport, ServeRow, table};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::Duration;

const NOTES: &str = "\
Examples:
  cargo xtask bench-serve --url http://127.0.0.1:8080 --clients 1,4,16
  cargo xtask bench-serve --rate 2,8 --prompt 512 --common 256 \\
      --start 'gristmill=target/release/gristmill serve MODEL.gguf --port {port}' \\
      --start 'llama.cpp=llama-server -m MODEL.gguf --port {port} -np 16 -c 32768'

Servers of --start run one at a time: each is started for its part of a round and stopped after it. One warm-up request
precedes each run. Every answer has --max-tokens tokens (`ignore_eos`). `first` is the time to first text (TTFT), `token`
the mean time per output token after the first (TPOT) of each request, and `gap` the time between two chunks of a stream,
which may hold several tokens.";

/// Maximum number of clients, and of requests per run.
const MAX_LOAD: (u32, u32) = (1024, 100_000);

#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// Running server: its address, or NAME=ADDRESS
    #[arg(long, value_name = "URL", value_parser = |text: &str| Ok::<_, String>(Named::url(text)))]
    url: Vec<Named>,
    /// Server to start: NAME=COMMAND, with {port} in place of the port
    #[arg(long, value_name = "NAME=COMMAND", value_parser = |text: &str| Named::command(text).map_err(|error| error.to_string()))]
    start: Vec<Named>,
    /// Closed loops: numbers of concurrent clients [default: 1,4,16, unless --rate is given]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=MAX_LOAD.0 as i64))]
    clients: Vec<u32>,
    /// Open loops: request rates per second
    #[arg(long, value_name = "RATE", value_delimiter = ',', value_parser = rate)]
    rate: Vec<f64>,
    /// Requests per run
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=MAX_LOAD.1 as i64))]
    requests: u32,
    /// Prompt length in tokens
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt: u32,
    /// Length of the prefix shared by all prompts, in tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    common: u32,
    /// Tokens generated per request
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_tokens: u32,
    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f64,
    /// Additional request parameters, as a JSON object: '{"top_p": 0.9}'
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = parameters)]
    parameters: Map<String, Value>,
    /// Rounds; each measures every server in turn
    #[arg(short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    r: u16,
    /// Seed of prompts and arrival times
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Request timeout in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    #[command(flatten)]
    access: Access,
    /// Free text for the report: model, device, builds of the other servers
    #[arg(long, value_name = "TEXT", default_value = "")]
    about: String,
    /// JSON file for the report; rewritten after every run
    #[arg(short, long, value_name = "FILE.json")]
    output: Option<PathBuf>,
}

fn parameters(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("a JSON object: {error}"))
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.001..=10_000.0).contains(&rate) => Ok(rate),
        _ => Err("requests a second, from 0.001 to 10000".into()),
    }
}

/// Returns true once everything is measured, even if requests failed.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    let servers: Vec<&Named> = options.start.iter().chain(&options.url).collect();
    if servers.is_empty() {
        bail!("no server\nhint: --url http://127.0.0.1:8080, or --start 'NAME=COMMAND --port {{port}}'");
    }
    if options.common > options.prompt {
        bail!(
            "--common {} is more than --prompt {}\nhint: the prefix is part of the prompt",
            options.common,
            options.prompt
        );
    }
    let mut report = ServeReport {
        date: machine::today(),
        command: command(options),
        commit: shell::commit(&root)?,
        machine: machine::describe(machine::cores()?)?,
        about: options.about.clone(),
        rows: vec![],
    };
    // Fail now rather than after an hour if the report cannot be written.
    if let Some(path) = &options.output {
        shell::save(path, &report)?;
    }
    for round in 1..=options.r {
        for server in &servers {
            measure(options, server, round, &mut report)?;
        }
    }
    print!("{}", table(&report));
    Ok(true)
}

/// Measures all runs of one server in one round.
fn measure(options: &Options, server: &Named, round: u16, report: &mut ServeReport) -> Result<()> {
    eprintln!("bench-serve: {}, round {round} of {}", server.name, options.r);
    let (running, model) = options.access.begin(server)?;
    let asking = ServeClient {
        site: running.site.clone(),
        model,
        max_tokens: options.max_tokens as usize,
        temperature: options.temperature,
        parameters: options.parameters.clone(),
        timeout: Duration::from_secs(options.timeout.into()),
        seed: options.seed,
    };
    let prompts = Prompts { length: options.prompt as usize, common: options.common as usize, seed: options.seed };
    let requests = options.requests as usize;
    for (nth, pace) in paces(options).into_iter().enumerate() {
        // Every run has prompts of its own, so that prefix hits come from the shared prefix only.
        let mut made = prompts.make(&asking.site, nth * (requests + 1), requests + 1)?;
        let first = made.split_off(requests);
        load::run(&asking, &first, Pace::Clients(1));
        let row = ServeRow::new(&server.name, pace, round, load::run(&asking, &made, pace));
        eprintln!(
            "bench-serve: {}, {pace}: {:.1} tokens/s of answers in {:.1} s",
            server.name, row.answer_rate, row.seconds
        );
        report.rows.push(row);
        if let Some(path) = &options.output {
            shell::save(path, report)?;
        }
    }
    Ok(())
}

/// Lists the loads of a round, in order.
fn paces(options: &Options) -> Vec<Pace> {
    let clients = match (&options.clients[..], &options.rate[..]) {
        ([], []) => &[1, 4, 16],
        (clients, _) => clients,
    };
    let clients = clients.iter().map(|&clients| Pace::Clients(clients as usize));
    clients.chain(options.rate.iter().map(|&rate| Pace::Rate(rate))).collect()
}

/// Formats a command line for the report: servers by name only, without the key.
fn command(options: &Options) -> String {
    let mut text = "cargo xtask bench-serve".to_owned();
    for server in options.start.iter().chain(&options.url) {
        text += &format!(" --start {}=…", server.name);
    }
    for pace in paces(options) {
        text += &match pace {
            Pace::Clients(clients) => format!(" --clients {clients}"),
            Pace::Rate(rate) => format!(" --rate {rate}"),
        };
    }
    let Options { requests, prompt, common, max_tokens, temperature, r, seed, .. } = options;
    if !options.parameters.is_empty() {
        text += &format!(" --parameters '{}'", Value::from(options.parameters.clone()));
    }
    text + &format!(
        " --requests {requests} --prompt {prompt} --common {common} --max-tokens {max_tokens} --temperature {temperature} -r {r} --seed {seed}"
    )
}
