//! `xtask soak`: stress test of an OpenAI-compatible server with clients that disconnect.
//!
//! Invariants: no request is refused or starves, every answer equals the one given when it runs
//! alone (batch-invariant decoding), and an idle server has released KV pages, connections and
//! memory beyond its initial use.

mod cases;
mod load;
mod report;
#[cfg(test)]
mod tests;
mod watch;

use crate::serving::access::Access;
use crate::serving::servers::{Named, Running};
use crate::{machine, shell};
use anyhow::{Result, anyhow};
use cases::CaseSizes;
use load::{Loop, Outcome, SoakClient};
use report::{Answers, LatencySpread, SoakReport, table};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const NOTES: &str = "\
Examples:
  cargo xtask soak --start 'gristmill=target/release/gristmill serve demo --port {port} --parallel 64'
  cargo xtask soak --requests 2000 --fair --start 'four=target/release/gristmill serve demo --port {port} --parallel 4'
  cargo xtask soak --url http://127.0.0.1:8080 --requests 300 --seed 7 -o soak.json

First every prompt is answered alone, one after the other. Then --clients concurrent clients send the prompts at random. A
client that disconnects does so after its request was sent, after some chunks of the answer, or after up to 8 s. Half of
the answers are greedy, half have a seed, and all set `batch_invariant`: every finished answer must equal the one given
alone, including finish reason and token count, and every partial answer must be a prefix of it.

After the load, `gristmill_cache_pages_used`, `gristmill_cache_pages_leaked`, `gristmill_cache_tokens`, connections and
requests of /metrics must return to their initial values within --idle seconds. For a server of --start, the median of the
resident memory over the last tenth of the run is compared with the median over the second tenth. No other client may use
the server meanwhile.

Use --fair on an otherwise idle machine, since other programs delay requests too. `others` counts the requests that got
their first text while one waited, which depends on the server alone.

Exits with 1 if there are findings. The same --seed yields the same prompts, requests and disconnects.";

/// Maximum number of clients, and of requests.
const MAX_LOAD: (u32, u32) = (1024, 10_000_000);
/// Interval between progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
#[command(after_help = NOTES)]
#[group(id = "server", required = true, args = ["url", "start"])]
pub struct Options {
    /// Running server: its address, or NAME=ADDRESS; its memory is not measured
    #[arg(long, value_name = "URL", value_parser = |text: &str| Ok::<_, String>(Named::url(text)))]
    url: Option<Named>,
    /// Server to start: NAME=COMMAND, with {port} in place of the port
    #[arg(long, value_name = "NAME=COMMAND", value_parser = |text: &str| Named::command(text).map_err(|error| error.to_string()))]
    start: Option<Named>,
    /// Total number of requests
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=MAX_LOAD.1 as i64))]
    requests: u32,
    /// Number of concurrent clients
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=MAX_LOAD.0 as i64))]
    clients: u32,
    /// Share of requests whose client disconnects, from 0 to 1
    #[arg(long, value_name = "PART", default_value_t = 0.33, value_parser = part)]
    hang_up: f64,
    /// Number of distinct prompts
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    prompts: u32,
    /// Maximum prompt length in tokens
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt: u32,
    /// Maximum answer length in tokens
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_tokens: u32,
    /// Require that the longest time to first text is at most three times the median, for a server
    /// with fewer slots than clients
    #[arg(long)]
    fair: bool,
    /// Allowed growth of resident memory in MiB, or 5 % if that is more. 64 MiB is one arena heap
    /// of glibc, which any thread may allocate; over 10,000 requests it is about 7 KiB each
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    growth: u32,
    /// Seconds within which the server must become idle at the end
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    idle: u32,
    /// Request timeout in seconds; a request that exceeds it has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// Seed of prompts, requests and disconnects
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    access: Access,
    /// JSON file for the report
    #[arg(short, long, value_name = "FILE.json")]
    output: Option<PathBuf>,
}

fn part(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(part) if (0.0..=1.0).contains(&part) => Ok(part),
        _ => Err("a part, from 0 to 1".into()),
    }
}

/// Returns true if there are no findings.
pub fn run(options: &Options) -> Result<bool> {
    let root = shell::root()?;
    let mut report = SoakReport {
        date: machine::today(),
        command: command(options),
        commit: shell::commit(&root)?,
        machine: Some(machine::describe(machine::cores()?)?),
        ..SoakReport::default()
    };
    // Fail now rather than after an hour if the report cannot be written.
    let save = |report: &SoakReport| options.output.as_ref().map_or(Ok(()), |path| shell::save(path, report));
    save(&report)?;
    soak(options, &mut report)?;
    save(&report)?;
    print!("{}", table(&report));
    Ok(report.findings.is_empty())
}

fn server(options: &Options) -> Result<&Named> {
    let named = options.start.as_ref().or(options.url.as_ref());
    named.ok_or_else(|| {
        anyhow!("no server\nhint: --url http://127.0.0.1:8080, or --start 'NAME=COMMAND --port {{port}}'")
    })
}

/// Runs the test and fills in the report, except for date, commit, command and machine.
fn soak(options: &Options, report: &mut SoakReport) -> Result<()> {
    let server = server(options)?;
    let (running, model) = options.access.begin(server)?;
    (report.server, report.fair) = (server.name.clone(), options.fair);
    (report.requests, report.clients) = (options.requests as usize, options.clients as usize);
    report.before = watch::at_first(&running.site)?;
    let sizes = CaseSizes {
        cases: options.prompts as usize,
        prompt: options.prompt as usize,
        answer: options.max_tokens as usize,
        seed: options.seed,
    };
    let asking = SoakClient::new(running.site.clone(), Duration::from_secs(options.timeout.into()));
    let cases = cases::cases(&asking.site, &model, &sizes)?;
    eprintln!("soak: {} is ready; {} prompts are answered alone", server.name, cases.len());
    let begun = Instant::now();
    let alone = asking.alone(&cases)?;
    eprintln!("soak: that took {:.1} s; {} requests follow", begun.elapsed().as_secs_f64(), report.requests);
    let of = Loop {
        cases: &cases,
        requests: report.requests,
        clients: report.clients,
        hang_up: options.hang_up,
        seed: options.seed,
    };
    let begun = Instant::now();
    let (outcomes, memory) = watched(&running, &asking, &of);
    report.seconds = begun.elapsed().as_secs_f64();
    report.rate = outcomes.len() as f64 / report.seconds;
    let finished = outcomes.iter().filter_map(|(_, outcome)| match outcome {
        Outcome::Finished { waited, others, .. } => Some((*waited, *others as f64)),
        _ => None,
    });
    let (waits, others) = finished.unzip();
    (report.wait, report.others) = (LatencySpread::from_samples(waits), LatencySpread::from_samples(others));
    report.answers = Answers::new(&outcomes, &cases, &alone);
    report.memory = watch::Growth::fit(&memory, u64::from(options.growth) << 20);
    match watch::until_idle(&running.site, &report.before, Duration::from_secs(options.idle.into())) {
        Ok(after) => report.after = after,
        Err(error) => report.findings.push(format!("the server does not answer any more: {error:#}")),
    }
    report.find(running.process().is_some());
    Ok(())
}

/// Runs the load while another thread samples the server's memory and prints progress.
fn watched(running: &Running, asking: &SoakClient, of: &Loop) -> (load::Outcomes, Vec<u64>) {
    let (done, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (begun, mut said) = (Instant::now(), Instant::now());
    let progress = |now: Option<u64>| {
        if said.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        said = Instant::now();
        let done = done.load(Ordering::Relaxed);
        let memory = now.map_or(String::new(), |bytes| format!(", {:.1} MiB", bytes as f64 / f64::from(1 << 20)));
        let rate = done as f64 / begun.elapsed().as_secs_f64();
        eprintln!("soak: {done} of {} requests, {rate:.1} a second{memory}", of.requests);
    };
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch::memory(running.process(), &over, progress));
        let outcomes = load::run(asking, of, &done);
        over.store(true, Ordering::Relaxed);
        (outcomes, watching.join().unwrap_or_default())
    })
}

/// Formats a command line for the report: the server by name only, without the key.
fn command(options: &Options) -> String {
    let name = options.start.as_ref().or(options.url.as_ref()).map_or("", |server| &server.name);
    let Options { requests, clients, hang_up, prompts, prompt, max_tokens, seed, .. } = options;
    let fair = if options.fair { " --fair" } else { "" };
    format!(
        "cargo xtask soak --start {name}=… --requests {requests} --clients {clients} --hang-up {hang_up} --prompts {prompts} --prompt {prompt} --max-tokens {max_tokens} --seed {seed}{fair}"
    )
}
