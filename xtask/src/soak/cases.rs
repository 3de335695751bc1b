//! Requests and disconnects, all derived from a seed.

use crate::serving::http::Site;
use crate::serving::workload::{Prompts, WorkloadRng};
use anyhow::Result;
use serde_json::json;
use std::time::Duration;

/// Doublings of 1 ms in the longest delay before a disconnect (8 s). Delays are log-uniform, so
/// that they suit fast and slow servers.
const DELAY_DOUBLINGS: f64 = 13.0;

/// One request, which may be sent repeatedly.
#[derive(Debug, PartialEq)]
pub struct SoakCase {
    /// JSON body of the request.
    pub body: String,
    /// Length of the prompt in tokens.
    pub prompt_tokens: usize,
    /// Maximum tokens of the answer.
    pub most: usize,
    /// Whether tokens are sampled with a seed; otherwise decoding is greedy.
    pub drawn: bool,
}

/// Number of cases, and ranges of their lengths.
pub struct CaseSizes {
    pub cases: usize,
    /// Maximum tokens of a prompt.
    pub prompt: usize,
    /// Maximum tokens of an answer.
    pub answer: usize,
    pub seed: u64,
}

/// Makes the cases. Prompt lengths are uniform from 1; every second prompt shares a prefix with
/// others. Half of the answers are sampled with a seed, the others are greedy; a quarter of the
/// answers end at the model's end-of-sequence token.
///
/// # Errors
/// If `/tokenize` returns fewer tokens than words.
pub fn cases(site: &Site, model: &str, sizes: &CaseSizes) -> Result<Vec<SoakCase>> {
    let mut random = WorkloadRng::new(sizes.seed);
    let one = |nth: usize| {
        let length = 1 + random.below(sizes.prompt);
        let common = if nth.is_multiple_of(2) { 0 } else { random.below(length) };
        let most = 1 + random.below(sizes.answer);
        let drawn = nth / 2 % 2 == 1;
        let prompts = Prompts { length, common, seed: sizes.seed }.make(site, nth, 1)?;
        let mut body = json!({
            "model": model, "prompt": prompts[0], "max_tokens": most, "temperature": if drawn { 0.9 } else { 0.0 },
            "batch_invariant": true, "ignore_eos": !(nth / 4).is_multiple_of(4), "stream": true, "stream_options": { "include_usage": true },
        });
        if drawn {
            body["seed"] = nth.into();
        }
        Ok(SoakCase { body: body.to_string(), prompt_tokens: length, most, drawn })
    };
    (0..sizes.cases).map(one).collect()
}

/// When a client disconnects.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Moment {
    /// After the request is sent, before the answer is read.
    Sent,
    /// After this number of chunks of the answer.
    Pieces(usize),
    /// After this time since the request.
    After(Duration),
}

impl Moment {
    /// Returns a label for the table.
    pub fn name(self) -> &'static str {
        match self {
            Moment::Sent => "before the answer",
            Moment::Pieces(_) => "within the answer",
            Moment::After(_) => "after a while",
        }
    }
}

/// Derives request `nth` from the seed: its case, and its
/// disconnect for a share `hang_up` of the requests.
pub fn request(nth: usize, cases: &[SoakCase], hang_up: f64, seed: u64) -> (usize, Option<Moment>) {
    // The first numbers are those of the prompts.
    let mut random = WorkloadRng::nth(seed, cases.len() + nth);
    let case = random.below(cases.len());
    if random.unit() >= hang_up {
        return (case, None);
    }
    let moment = match random.below(3) {
        0 => Moment::Sent,
        1 => Moment::Pieces(1 + random.below(cases[case].most)),
        _ => Moment::After(Duration::from_secs_f64(0.001 * (random.unit() * DELAY_DOUBLINGS).exp2())),
    };
    (case, Some(moment))
}
