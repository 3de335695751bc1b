//! What an answer that is told at once may take of the memory: said before it begins, and counted while it grows.

use crate::error::ApiError;
use crate::job::Delta;
use crate::model::Served;
use crate::openai::settings::Settings;

/// Bytes of a token's text, about: four characters in most languages, and what JSON adds.
const TEXT: usize = 8;
/// Bytes of one token's probability in JSON besides its text: `{"token":"","logprob":-12.345678329467773,"bytes":[]},`.
const ENTRY: usize = 56;
/// Bytes for each byte of a token there: itself, and its number in `bytes`.
const SPELT: usize = 5;

/// How many tokens an answer may have: as many as were asked for, or, where nobody said how many, as many as may be told at once.
/// `prompt` is the length of the prompt, `top` the number of alternatives whose probabilities were asked for.
///
/// # Errors
/// When more were asked for than may be told at once.
pub fn limit(
    settings: &Settings,
    served: &Served,
    prompt: usize,
    top: Option<usize>,
    most: usize,
) -> Result<Option<usize>, ApiError> {
    if settings.stream {
        return Ok(settings.limit);
    }
    let each = token_bytes(top);
    let fitting = (most / each / settings.choices).max(1);
    // No answer is longer than the context has room for.
    let room = served.context.saturating_sub(prompt);
    match settings.limit {
        Some(limit) if limit.min(room) > fitting => {
            let mib = (limit.min(room) * each * settings.choices) >> 20;
            let message = format!(
                "n = {}, {} tokens and {} alternatives to each may take {mib} MiB, and an answer that is told at once has {}; \
                 max_tokens = {fitting} would fit, and with stream set to true any",
                settings.choices,
                limit.min(room),
                top.unwrap_or(0),
                most >> 20,
            );
            Err(ApiError::parameter("max_tokens", message).with_code("answer_too_large"))
        }
        None if room > fitting => Ok(Some(fitting)),
        limit => Ok(limit),
    }
}

fn token_bytes(top: Option<usize>) -> usize {
    TEXT + top.map_or(0, |top| (top + 1) * (ENTRY + TEXT * SPELT))
}

/// Counts what has come of an answer.
pub struct Count {
    bytes: usize,
    most: usize,
}

impl Count {
    /// Of an answer that may have so many bytes.
    pub fn new(most: usize) -> Count {
        Count { bytes: 0, most }
    }
    /// More of it.
    ///
    /// # Errors
    /// When that is more than it may have.
    pub fn add(&mut self, served: &Served, delta: &Delta) -> Result<(), ApiError> {
        let entry = |token: u32| ENTRY + SPELT * served.bytes(token).len();
        let tokens = delta.tokens.iter();
        let told = tokens.map(|it| entry(it.token) + it.top.iter().map(|&(token, _)| entry(token)).sum::<usize>());
        self.bytes += delta.text.len() + told.sum::<usize>();
        if self.bytes > self.most { Err(ApiError::answer_too_large(self.most)) } else { Ok(()) }
    }
}
