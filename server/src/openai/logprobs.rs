//! Probabilities of tokens, in the forms of both interfaces.

use crate::job::Chosen;
use crate::model::Served;
use serde_json::{Map, Value, json};

fn text(served: &Served, token: u32) -> String {
    String::from_utf8_lossy(served.bytes(token)).into_owned()
}

/// JSON has no −∞; this is what OpenAI's interface has in its place.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// As chat completions have them.
pub fn chat(served: &Served, tokens: &[Chosen]) -> Value {
    let entry = |token: u32, logprob: f32| json!({ "token": text(served, token), "logprob": finite(logprob), "bytes": served.bytes(token) });
    let content = tokens.iter().map(|chosen| {
        let mut value = entry(chosen.token, chosen.logprob);
        value["top_logprobs"] = chosen.top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
        value
    });
    json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
}

/// As completions have them. `offset` counts the characters of the answer before these tokens, and is moved on.
pub fn completion(served: &Served, tokens: &[Chosen], offset: &mut usize) -> Value {
    let mut offsets = Vec::new();
    for chosen in tokens {
        offsets.push(*offset);
        *offset += text(served, chosen.token).chars().count();
    }
    let top = |chosen: &Chosen| -> Map<String, Value> {
        chosen.top.iter().map(|&(token, logprob)| (text(served, token), finite(logprob).into())).collect()
    };
    json!({
        "tokens": tokens.iter().map(|chosen| text(served, chosen.token)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|chosen| finite(chosen.logprob)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}
