//! What an answer that is told at once may take of the memory: said before it begins, and counted while it grows.

use crate::core::error::RequestError;
use crate::core::event::Chosen;
use crate::core::model::Served;

/// Bytes, as sizes are told.
const MB: usize = 1_000_000;
/// Bytes of a token's text, about: four characters in most languages, and what JSON adds.
const TOKEN_TEXT_BYTES: usize = 8;
/// Bytes of one token's probability in JSON besides its text: `{"token":"","logprob":-12.345678329467773,"bytes":[]},`.
const LOGPROB_JSON_BYTES: usize = 56;
/// Bytes for each byte of a token there: itself, and its number in `bytes`.
const JSON_BYTES_PER_BYTE: usize = 5;

/// What a request wants told at once.
pub struct Wanted {
    /// Tokens of the longest of its prompts.
    pub prompt: usize,
    /// Answers in all.
    pub choices: usize,
    /// Most tokens of each, where somebody said.
    pub limit: Option<usize>,
    /// Alternatives whose probabilities were asked for.
    pub logprobs: Option<usize>,
    /// Likewise for each token of a prompt.
    pub prompt_logprobs: Option<usize>,
}

/// Refuses a request for more tokens than may be told at once. Where nobody said how many, the answer ends where its room does ([`room`]).
///
/// # Errors
/// When more were asked for than may be told at once.
pub fn check(wanted: &Wanted, served: &Served, most: usize, name: &str) -> Result<(), RequestError> {
    let scores = wanted.prompt_logprobs.map_or(0, |top| wanted.prompt * token_bytes(Some(top)));
    if scores * wanted.choices > most {
        let message = format!(
            "the probabilities of the prompts' tokens may take {} MB, and an answer that is told at once has {}; fewer prompts or \
             alternatives would fit",
            (scores * wanted.choices).div_ceil(MB),
            most / MB
        );
        return Err(RequestError::parameter("logprobs", message).with_code("answer_too_large"));
    }
    let Some(limit) = wanted.limit else { return Ok(()) };
    let each = token_bytes(wanted.logprobs);
    let fitting = ((most / wanted.choices).saturating_sub(scores) / each).max(1);
    // No answer is longer than the context has room for.
    let limit = limit.min(served.context.saturating_sub(wanted.prompt));
    if limit <= fitting {
        return Ok(());
    }
    let size = (limit * each * wanted.choices).div_ceil(MB);
    let message = format!(
        "{} answers of {limit} tokens and {} alternatives to each may take {size} MB, and an answer that is told at once has {}; \
         {name} = {fitting} would fit, and with stream set to true any",
        wanted.choices,
        wanted.logprobs.unwrap_or(0),
        most / MB,
    );
    Err(RequestError::parameter(name, message).with_code("answer_too_large"))
}

/// Bytes that each of so many answers may have that are told at once, of `most` in all.
pub fn room(choices: usize, most: usize) -> usize {
    most / choices.max(1)
}

fn token_bytes(top: Option<usize>) -> usize {
    TOKEN_TEXT_BYTES + top.map_or(0, |top| (top + 1) * (LOGPROB_JSON_BYTES + TOKEN_TEXT_BYTES * JSON_BYTES_PER_BYTE))
}

/// Bytes that a token's probability takes in JSON, and those of its alternatives, about.
pub fn bytes(served: &Served, chosen: &Chosen) -> usize {
    let entry = |token: u32| LOGPROB_JSON_BYTES + JSON_BYTES_PER_BYTE * served.bytes(token).len();
    entry(chosen.token) + chosen.top.iter().map(|&(token, _)| entry(token)).sum::<usize>()
}
