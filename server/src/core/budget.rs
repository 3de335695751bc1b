//! Memory budget of a response that is not streamed: checked before generation and counted while
//! the response grows.

use crate::core::error::RequestError;
use crate::core::event::Chosen;
use crate::core::model::Served;

/// Bytes of a megabyte in error messages.
const MB: usize = 1_000_000;
/// Estimated bytes of a token's text in JSON: four characters in most languages, and escapes.
const TOKEN_TEXT_BYTES: usize = 8;
/// Bytes of one log-probability in JSON without its text:
/// `{"token":"","logprob":-12.345678329467773,"bytes":[]},`.
const LOGPROB_JSON_BYTES: usize = 56;
/// JSON bytes for each byte of a token: the byte itself, and its number in `bytes`.
const JSON_BYTES_PER_BYTE: usize = 5;

/// Size of a response that is not streamed.
pub struct ReplySize {
    /// Tokens of the longest prompt.
    pub prompt: usize,
    /// Answers to all prompts.
    pub choices: usize,
    /// Maximum tokens of each answer, if the request has a limit.
    pub limit: Option<usize>,
    /// Alternatives to each token, if log-probabilities are requested.
    pub logprobs: Option<usize>,
    /// Alternatives to each prompt token, if their log-probabilities are requested.
    pub prompt_logprobs: Option<usize>,
}

/// Refuses a request for a larger response than the budget. An answer without a token limit is
/// instead cut off at [`reply_limit`].
///
/// # Errors
/// When the requested tokens or log-probabilities may exceed the budget.
pub fn check(
    wanted: &ReplySize,
    served: &Served,
    most: usize,
    name: &str,
) -> Result<(), RequestError> {
    let scores = wanted
        .prompt_logprobs
        .map_or(0, |top| wanted.prompt * token_bytes(Some(top)));
    if scores * wanted.choices > most {
        let message = format!(
            "the log-probabilities of the prompts may take {} MB, but a response without streaming is \
             limited to {} MB; send fewer prompts or request fewer alternatives",
            (scores * wanted.choices).div_ceil(MB),
            most / MB
        );
        return Err(RequestError::parameter("logprobs", message).with_code("answer_too_large"));
    }
    let Some(limit) = wanted.limit else {
        return Ok(());
    };
    let each = token_bytes(wanted.logprobs);
    let fitting = ((most / wanted.choices).saturating_sub(scores) / each).max(1);
    // The context bounds the answer, too.
    let limit = limit.min(served.context.saturating_sub(wanted.prompt));
    if limit <= fitting {
        return Ok(());
    }
    let size = (limit * each * wanted.choices).div_ceil(MB);
    let message = format!(
        "{} answers of {limit} tokens with {} alternatives per token may take {size} MB, but a response \
         without streaming is limited to {} MB; set {name} to {fitting} or less, or stream to true",
        wanted.choices,
        wanted.logprobs.unwrap_or(0),
        most / MB,
    );
    Err(RequestError::parameter(name, message).with_code("answer_too_large"))
}

/// Returns the bytes that each of `choices` answers may have, out of `most` for the whole response.
pub fn reply_limit(choices: usize, most: usize) -> usize {
    most / choices.max(1)
}

fn token_bytes(top: Option<usize>) -> usize {
    TOKEN_TEXT_BYTES
        + top.map_or(0, |top| {
            (top + 1) * (LOGPROB_JSON_BYTES + TOKEN_TEXT_BYTES * JSON_BYTES_PER_BYTE)
        })
}

/// Returns the approximate JSON bytes of a token's log-probability and of its alternatives.
pub fn bytes(served: &Served, chosen: &Chosen) -> usize {
    let entry = |token: u32| LOGPROB_JSON_BYTES + JSON_BYTES_PER_BYTE * served.bytes(token).len();
    entry(chosen.token)
        + chosen
            .top
            .iter()
            .map(|&(token, _)| entry(token))
            .sum::<usize>()
}
