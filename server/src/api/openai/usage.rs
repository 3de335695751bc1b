//! Usage and timings of a response, in the formats of OpenAI and llama.cpp.

use crate::core::event::{Finish, Usage};
use serde_json::{Value, json};
use std::time::Duration;

/// Returns OpenAI's usage object with token counts.
pub fn usage_json(usage: &Usage) -> Value {
    let mut details = json!({ "reasoning_tokens": usage.reasoning });
    if usage.drafted > 0 {
        details["accepted_prediction_tokens"] = usage.kept_drafts.into();
        details["rejected_prediction_tokens"] = (usage.drafted - usage.kept_drafts).into();
    }
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.answer,
        "total_tokens": usage.prompt + usage.answer,
        "prompt_tokens_details": { "cached_tokens": usage.cached },
        "completion_tokens_details": details,
    })
}

/// Returns llama.cpp's timings object, an extension of OpenAI's interface.
pub fn timings_json(usage: &Usage) -> Value {
    let run = usage.prompt - usage.cached;
    let mut timings = json!({
        "cache_n": usage.cached,
        "prompt_n": run,
        "prompt_ms": milliseconds(usage.prompt_time),
        "prompt_per_second": rate(run, usage.prompt_time),
        "predicted_n": usage.answer,
        "predicted_ms": milliseconds(usage.answer_time),
        "predicted_per_second": rate(usage.answer, usage.answer_time),
    });
    if usage.drafted > 0 {
        timings["draft_n"] = usage.drafted.into();
        timings["draft_n_accepted"] = usage.kept_drafts.into();
    }
    timings
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns tokens per second.
pub fn rate(tokens: usize, time: Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(1e-9)
}

/// Returns OpenAI's `finish_reason`.
pub fn finish_name(reason: &Finish) -> &'static str {
    match reason {
        Finish::Stop | Finish::StopText(_) => "stop",
        Finish::Length => "length",
    }
}
