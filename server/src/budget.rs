//! What an answer that is told at once may take of the memory: said before it begins, and counted while it grows.

use crate::error::ApiError;
use crate::event::Chosen;
use crate::model::Served;
use crate::settings::Settings;

/// Bytes of a token's text, about: four characters in most languages, and what JSON adds.
const TEXT: usize = 8;
/// Bytes of one token's probability in JSON besides its text: `{"token":"","logprob":-12.345678329467773,"bytes":[]},`.
const ENTRY: usize = 56;
/// Bytes for each byte of a token there: itself, and its number in `bytes`.
const SPELT: usize = 5;

/// Refuses a request for more tokens than may be told at once. Where nobody said how many, the answer ends where its room does ([`room`]).
/// `prompt` is the length of the prompt, `top` the number of alternatives whose probabilities were asked for.
///
/// # Errors
/// When more were asked for than may be told at once.
pub fn check(
    settings: &Settings,
    served: &Served,
    prompt: usize,
    top: Option<usize>,
    most: usize,
) -> Result<(), ApiError> {
    let Some(limit) = settings.limit.filter(|_| !settings.stream) else { return Ok(()) };
    let each = token_bytes(top);
    let fitting = (most / each / settings.choices).max(1);
    // No answer is longer than the context has room for.
    let limit = limit.min(served.context.saturating_sub(prompt));
    if limit <= fitting {
        return Ok(());
    }
    let mib = (limit * each * settings.choices) >> 20;
    let message = format!(
        "n = {}, {limit} tokens and {} alternatives to each may take {mib} MiB, and an answer that is told at once has {}; \
         max_tokens = {fitting} would fit, and with stream set to true any",
        settings.choices,
        top.unwrap_or(0),
        most >> 20,
    );
    Err(ApiError::parameter("max_tokens", message).with_code("answer_too_large"))
}

/// Bytes that each of the answers to a request may have that is told at once, of `most` in all; none for a stream, which may have any.
pub fn room(settings: &Settings, most: usize) -> Option<usize> {
    (!settings.stream).then_some(most / settings.choices)
}

fn token_bytes(top: Option<usize>) -> usize {
    TEXT + top.map_or(0, |top| (top + 1) * (ENTRY + TEXT * SPELT))
}

/// Bytes that a token's probability takes in JSON, and those of its alternatives, about.
pub fn bytes(served: &Served, chosen: &Chosen) -> usize {
    let entry = |token: u32| ENTRY + SPELT * served.bytes(token).len();
    entry(chosen.token) + chosen.top.iter().map(|&(token, _)| entry(token)).sum::<usize>()
}
