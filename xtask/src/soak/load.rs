//! Sends requests, and records their outcomes.

use super::cases::{Moment, SoakCase, request};
use crate::serving::clients::closed;
use crate::serving::completions::CompletionEvent;
use crate::serving::http::Site;
use anyhow::{Context, Result, bail};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Failed requests after which no more are sent, so that a dead server is detected soon.
const MAX_FAILURES: usize = 100;

/// An answer, as far as it was received.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Completion {
    pub text: String,
    /// The `finish_reason` of the answer.
    pub finish: Option<String>,
    /// Number of generated tokens, if the server reports it.
    pub tokens: Option<usize>,
}

/// Outcome of one request.
#[derive(PartialEq, Debug)]
pub enum Outcome {
    /// The complete answer. `waited` is the seconds to its first text, or to its end if it is
    /// empty; `others` is the number of other requests that got their first text meanwhile.
    Finished {
        answer: Completion,
        waited: f64,
        others: usize,
    },
    /// The client disconnected at this moment. `text` is the received part of the answer.
    HungUp {
        moment: Moment,
        text: String,
    },
    Failed(String),
}

/// Client of the server under test.
pub struct SoakClient {
    pub site: Site,
    pub timeout: Duration,
    /// Number of requests that have received their first text.
    served: AtomicUsize,
}

impl SoakClient {
    pub fn new(site: Site, timeout: Duration) -> SoakClient {
        SoakClient { site, timeout, served: AtomicUsize::new(0) }
    }
    /// Sends a request, and disconnects at `moment` unless the answer has ended before.
    pub fn ask(&self, case: &SoakCase, moment: Option<Moment>) -> Outcome {
        let within = match moment {
            Some(Moment::Sent) => Duration::ZERO,
            Some(Moment::After(time)) => time.min(self.timeout),
            _ => self.timeout,
        };
        let (mut answer, mut first, mut pieces) = (Completion::default(), None, 0);
        let served = || self.served.fetch_add(1, Ordering::Relaxed);
        let (begun, before) = (Instant::now(), self.served.load(Ordering::Relaxed));
        let told = self.site.stream("/v1/completions", &case.body, within, |data| {
            let piece = CompletionEvent::read(data)?;
            answer.tokens = piece.count("completion_tokens").or(answer.tokens);
            if !piece.text.is_empty() {
                first.get_or_insert_with(|| (begun.elapsed(), served()));
                answer.text += &piece.text;
                pieces += 1;
            }
            answer.finish = piece.finish.or(answer.finish.take());
            if moment == Some(Moment::Pieces(pieces)) {
                bail!("the client has enough");
            }
            Ok(())
        });
        let took = begun.elapsed();
        let left = |moment: &Moment| match *moment {
            Moment::Pieces(most) => pieces >= most,
            Moment::Sent | Moment::After(_) => took >= within,
        };
        match (told, moment.filter(left)) {
            (Ok(()), _) => {
                let (waited, then) = first.unwrap_or_else(|| (took, served()));
                Outcome::Finished { answer, waited: waited.as_secs_f64(), others: then - before }
            }
            (Err(_), Some(moment)) => Outcome::HungUp { moment, text: answer.text },
            (Err(error), None) => Outcome::Failed(format!("{error:#}")),
        }
    }
    /// Sends every case alone, one after the other.
    ///
    /// # Errors
    /// If a request fails.
    pub fn alone(&self, cases: &[SoakCase]) -> Result<Vec<Completion>> {
        let one = |(nth, case): (usize, &SoakCase)| match self.ask(case, None) {
            Outcome::Finished { answer, .. } => Ok(answer),
            Outcome::Failed(error) => bail!("prompt {nth}, alone: {error}"),
            Outcome::HungUp { .. } => bail!("prompt {nth}, alone: its client hung up"),
        };
        let answers = cases.iter().enumerate().map(one).collect::<Result<_>>();
        answers.context(
            "a request fails although no other is sent\nhint: check with `gristmill run` that this model answers",
        )
    }
}

/// Parameters of the load: a closed loop over random cases.
pub struct Loop<'a> {
    pub cases: &'a [SoakCase],
    pub requests: usize,
    pub clients: usize,
    pub hang_up: f64,
    pub seed: u64,
}

/// Case number and outcome of each request that was sent.
pub type Outcomes = Vec<(usize, Outcome)>;

/// Sends all requests unless too many fail; `done` counts finished ones for the progress messages.
pub fn run(asking: &SoakClient, of: &Loop, done: &AtomicUsize) -> Outcomes {
    let (outcomes, failed) = (Mutex::new(Vec::with_capacity(of.requests)), AtomicUsize::new(0));
    let note = |case: usize, outcome: Outcome| {
        failed.fetch_add(usize::from(matches!(outcome, Outcome::Failed(_))), Ordering::Relaxed);
        outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((case, outcome));
        done.fetch_add(1, Ordering::Relaxed);
    };
    let each = |nth: usize| {
        let (case, moment) = request(nth, of.cases, of.hang_up, of.seed);
        note(case, asking.ask(&of.cases[case], moment));
        failed.load(Ordering::Relaxed) < MAX_FAILURES
    };
    let without = closed(of.requests, of.clients, &each);
    (0..without).for_each(|_| note(0, Outcome::Failed("no thread for a client".into())));
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}
