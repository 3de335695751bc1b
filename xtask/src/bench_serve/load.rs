//! Load generators: closed loop and open loop.

use crate::serving::clients::{STACK, closed};
use crate::serving::completions::CompletionEvent;
use crate::serving::http::Site;
use crate::serving::workload::arrivals;
use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum in-flight requests of an open loop, so that a
/// slow server does not exhaust this machine's threads.
const MAX_IN_FLIGHT: usize = 1024;

/// Arrival process of the requests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// Closed loop: number of clients, each of which sends its
    /// next request when the previous one has finished.
    Clients(usize),
    /// Open loop: mean requests per second, independent of completions.
    Rate(f64),
}

impl std::fmt::Display for Pace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pace::Clients(1) => write!(f, "1 client"),
            Pace::Clients(clients) => write!(f, "{clients} clients"),
            Pace::Rate(rate) => write!(f, "{rate} /s"),
        }
    }
}

/// Target server, and the parameters shared by all requests.
pub struct ServeClient {
    pub site: Site,
    pub model: String,
    pub max_tokens: usize,
    pub temperature: f64,
    /// Additional parameters of the request body.
    pub parameters: Map<String, Value>,
    /// Timeout of each request.
    pub timeout: Duration,
    /// Seed of the arrival times.
    pub seed: u64,
}

/// Measurements of one completed request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    pub prompt_tokens: usize,
    pub answer_tokens: usize,
    /// Time to first text (TTFT), in seconds.
    pub first: f64,
    /// Seconds between consecutive chunks of the stream.
    pub gaps: Vec<f64>,
    /// Total duration of the request, in seconds.
    pub whole: f64,
}

/// Outcome of each request, and the duration of the run.
pub struct ServeOutcomes {
    pub each: Vec<Result<Answered, String>>,
    pub seconds: f64,
}

/// Sends all prompts at the given pace.
pub fn run(asking: &ServeClient, prompts: &[Value], pace: Pace) -> ServeOutcomes {
    let begun = Instant::now();
    let outcomes = Mutex::new(Vec::with_capacity(prompts.len()));
    let note = |outcome: Result<Answered>| {
        let outcome = outcome.map_err(|error| format!("{error:#}"));
        outcomes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(outcome);
    };
    match pace {
        Pace::Clients(clients) => {
            let each = |nth: usize| {
                note(one(asking, &prompts[nth]));
                true
            };
            let without = closed(prompts.len(), clients, &each);
            (0..without).for_each(|_| note(Err(anyhow!("no thread for a client"))));
        }
        Pace::Rate(rate) => open(asking, prompts, rate, &note),
    }
    let each = outcomes.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    ServeOutcomes { each, seconds: begun.elapsed().as_secs_f64() }
}

fn open(asking: &ServeClient, prompts: &[Value], rate: f64, note: &(impl Fn(Result<Answered>) + Sync)) {
    let under_way = AtomicUsize::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (prompt, at) in prompts.iter().zip(arrivals(prompts.len(), rate, asking.seed)) {
            std::thread::sleep(at.saturating_sub(begun.elapsed()));
            if under_way.load(Ordering::Relaxed) >= MAX_IN_FLIGHT {
                note(Err(anyhow!("not sent: {MAX_IN_FLIGHT} were under way")));
                continue;
            }
            under_way.fetch_add(1, Ordering::Relaxed);
            let request = || {
                note(one(asking, prompt));
                under_way.fetch_sub(1, Ordering::Relaxed);
            };
            if std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, request).is_err() {
                under_way.fetch_sub(1, Ordering::Relaxed);
                note(Err(anyhow!("no thread for a request")));
            }
        }
    });
}

/// Sends one streaming request and measures it.
fn one(asking: &ServeClient, prompt: &Value) -> Result<Answered> {
    // `ignore_eos` makes all answers equally long.
    let mut body = json!({
        "model": asking.model, "prompt": prompt, "max_tokens": asking.max_tokens, "temperature": asking.temperature,
        "ignore_eos": true, "stream": true, "stream_options": { "include_usage": true },
    });
    asking.parameters.iter().for_each(|(name, value)| body[name] = value.clone());
    let begun = Instant::now();
    let (mut pieces, mut last) = (Vec::new(), CompletionEvent::default());
    asking.site.stream("/v1/completions", &body.to_string(), asking.timeout, |data| {
        let piece = CompletionEvent::read(data)?;
        if !piece.text.is_empty() {
            pieces.push(begun.elapsed().as_secs_f64());
        }
        if piece.usage.is_object() {
            last = piece;
        }
        Ok(())
    })?;
    let whole = begun.elapsed().as_secs_f64();
    let first = *pieces.first().context("an answer without text")?;
    Ok(Answered {
        prompt_tokens: last.count("prompt_tokens").unwrap_or(0),
        answer_tokens: last.count("completion_tokens").unwrap_or(pieces.len()),
        first,
        gaps: pieces.windows(2).map(|two| two[1] - two[0]).collect(),
        whole,
    })
}
