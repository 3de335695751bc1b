//! OpenAI's interface: an endpoint a file.

pub mod chat;
pub mod completions;
pub mod models;
pub mod settings;

mod events;
mod logprobs;
mod messages;
mod tools;

use crate::event::{Finish, Usage};
use serde_json::{Map, Value, json};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// An identifier that no other request has.
fn fresh_id(prefix: &str) -> String {
    // Every RandomState has keys of its own.
    let part = || RandomState::new().build_hasher().finish();
    format!("{prefix}{:016x}{:08x}", part(), part() as u32)
}

/// What all answers and their pieces begin with.
fn envelope(id: &str, object: &str, created: u64, model: &str) -> Map<String, Value> {
    let fingerprint = concat!("gristmill-", env!("CARGO_PKG_VERSION"));
    let fields: [(&str, Value); 5] = [
        ("id", id.into()),
        ("object", object.into()),
        ("created", created.into()),
        ("model", model.into()),
        ("system_fingerprint", fingerprint.into()),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

/// Tokens, as clients count them.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.answer,
        "total_tokens": usage.prompt + usage.answer,
        "prompt_tokens_details": { "cached_tokens": usage.cached },
    })
}

/// A whole answer, or the last chunk of one, with what it took.
fn with_usage(mut answer: Value, usage: &Usage) -> Value {
    answer["usage"] = usage_json(usage);
    answer["timings"] = timings_json(usage);
    answer
}

/// How long it took: beyond OpenAI's interface, in the words of llama.cpp's server.
fn timings_json(usage: &Usage) -> Value {
    let run = usage.prompt - usage.cached;
    json!({
        "cache_n": usage.cached,
        "prompt_n": run,
        "prompt_ms": milliseconds(usage.prompt_time),
        "prompt_per_second": rate(run, usage.prompt_time),
        "predicted_n": usage.answer,
        "predicted_ms": milliseconds(usage.answer_time),
        "predicted_per_second": rate(usage.answer, usage.answer_time),
    })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn rate(tokens: usize, time: Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(1e-9)
}

/// Why an answer ended, as the interface says it.
fn finish_name(reason: Finish) -> &'static str {
    match reason {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}
