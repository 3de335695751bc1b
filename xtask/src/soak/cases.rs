//! What is asked, and when who asked hangs up: all of it follows from a seed.

use crate::serving::http::Site;
use crate::serving::workload::{Prompts, WorkloadRng};
use anyhow::Result;
use serde_json::json;
use std::time::Duration;

/// A client that hangs up after a while does so after a millisecond at least, and after so many doublings of it at most (8 s): as often within the first milliseconds as within the last
/// seconds, since how long an answer takes is the server's affair.
const DELAY_DOUBLINGS: f64 = 13.0;

/// One request, which may be sent any number of times.
#[derive(Debug, PartialEq)]
pub struct SoakCase {
    /// Its body.
    pub body: String,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Most tokens of its answer.
    pub most: usize,
    /// Is a token drawn, rather than the most probable one taken?
    pub drawn: bool,
}

/// How cases vary.
pub struct CaseSizes {
    pub cases: usize,
    /// Most tokens of a prompt.
    pub prompt: usize,
    /// Most tokens of an answer.
    pub answer: usize,
    pub seed: u64,
}

/// Makes the cases. Prompts have 1 token to the most, and of every other some begin as those of others do. Every second answer is drawn with a seed, the others are the most probable ones;
/// a quarter of them ends where the model ends it.
///
/// # Errors
/// When the server makes too few tokens of a text.
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

/// When a client hangs up.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Moment {
    /// Once all is sent, before anything of the answer is read.
    Sent,
    /// After so many pieces of the answer.
    Pieces(usize),
    /// After so long.
    After(Duration),
}

impl Moment {
    /// For a table.
    pub fn name(self) -> &'static str {
        match self {
            Moment::Sent => "before the answer",
            Moment::Pieces(_) => "within the answer",
            Moment::After(_) => "after a while",
        }
    }
}

/// The request of that number: which case it is, and when it hangs up, if it does. Of so many, that part does.
pub fn request(nth: usize, cases: &[SoakCase], hang_up: f64, seed: u64) -> (usize, Option<Moment>) {
    // Behind those that prompts follow from.
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
