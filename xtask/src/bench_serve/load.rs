//! Requests under way: so many at a time, or as they arrive.

use crate::serving::clients::{STACK, closed};
use crate::serving::completions::CompletionEvent;
use crate::serving::http::Site;
use crate::serving::workload::arrivals;
use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Most requests of an open loop that are under way: a server that falls behind must not take this machine's threads with it.
const MAX_IN_FLIGHT: usize = 1024;

/// How requests come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// So many clients, each of which asks again once it was answered: a closed loop.
    Clients(usize),
    /// So many requests a second on average, whether or not earlier ones were answered: an open loop.
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

/// What every request asks for, and of whom.
pub struct ServeClient {
    pub site: Site,
    pub model: String,
    pub max_tokens: usize,
    pub temperature: f64,
    /// Besides.
    pub parameters: Map<String, Value>,
    /// For each of them.
    pub timeout: Duration,
    /// Of the arrivals.
    pub seed: u64,
}

/// What came of a request that was answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    pub prompt_tokens: usize,
    pub answer_tokens: usize,
    /// Seconds from the request to its first text.
    pub first: f64,
    /// Seconds from each piece of the answer to the next.
    pub gaps: Vec<f64>,
    /// Seconds in all.
    pub whole: f64,
}

/// What came of a run: each request's outcome, and how many seconds they took together.
pub struct ServeOutcomes {
    pub each: Vec<Result<Answered, String>>,
    pub seconds: f64,
}

/// Sends all of the prompts at that pace.
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

/// One request, as a stream.
fn one(asking: &ServeClient, prompt: &Value) -> Result<Answered> {
    // What would end an answer early is passed over, so that all answers are of one length.
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
