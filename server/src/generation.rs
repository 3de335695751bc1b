//! One answer while it is made: tokens from the core's [`generation`], text to whoever asked.

use crate::constraint::Constraint;
use crate::error::ApiError;
use crate::job::{Chosen, Delta, Event, Finish, Job};
use crate::model::Served;
use gristmill_llm::generation;
use gristmill_llm::sampling::{Sampler, StopMatcher};
use gristmill_llm::session::{self, ConstraintError, Session};
use gristmill_llm::tokenizer::Utf8Stream;
use std::time::{Duration, Instant};

/// Text is told no more often than this, but for the first: faster than eyes, and each telling wakes two programs that take the cores
/// from the model. An answer slower than that is told token by token.
const TELL: Duration = Duration::from_millis(20);

/// An answer.
pub struct Generation<'j> {
    served: &'j Served,
    job: &'j Job,
    tokens: generation::Generation<'j>,
    stop: StopMatcher,
    characters: Utf8Stream,
    /// What was not told yet.
    pending: Delta,
    begun: Instant,
    told: Option<Instant>,
}

impl<'j> Generation<'j> {
    /// The answer of that number.
    ///
    /// # Errors
    /// When its sampling parameters are out of range.
    pub fn new(served: &'j Served, job: &'j Job, choice: usize) -> Result<Generation<'j>, ApiError> {
        let mut sampling = job.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(choice as u64);
        let sampler = Sampler::new(sampling).map_err(|error| failed(error.into()))?;
        let ends = |token| served.tokenizer.is_eog(token) && !job.endless;
        let mut tokens = generation::Generation::new(sampler, job.limit, ends).with_bias(&job.bias);
        if let Some(constraint) = job.constraint.clone() {
            tokens = tokens.with_constraint(Box::new(Bound { constraint, served, job }));
        }
        if job.logprobs.is_some() {
            tokens = tokens.with_logits();
        }
        Ok(Generation {
            served,
            job,
            tokens,
            stop: StopMatcher::new(job.stop.iter().cloned()),
            characters: Utf8Stream::default(),
            pending: Delta { choice, ..Delta::default() },
            begun: Instant::now(),
            told: None,
        })
    }
    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens.tokens()
    }
    /// The next token: the one before is run, it is chosen and told; or why nothing follows.
    ///
    /// # Errors
    /// When the choice or the model fails.
    pub fn step(&mut self, session: &mut Session) -> Result<Option<Finish>, ApiError> {
        let step = self.tokens.step(session).map_err(failed)?;
        let Some(token) = step.token else {
            let Some(finish) = step.finish else { unreachable!("{step:?} has neither a token nor an end") };
            return Ok(Some(self.end(finish.into())));
        };
        self.pending.so_far = self.tokens.tokens();
        if let Some(top) = self.job.logprobs {
            self.pending.tokens.push(probabilities(session.logits(), token, top));
        }
        let mut text = String::new();
        self.characters.push(self.served.shown(token, self.job.markers), &mut text);
        self.pending.text += &self.stop.push(&text);
        let stopped = self.stop.stopped().map(|_| generation::Finish::Stopped);
        if let Some(finish) = stopped.or(step.finish) {
            return Ok(Some(self.end(finish.into())));
        }
        self.tell_in_time();
        Ok(None)
    }
    /// Nothing follows: what was held back is told.
    fn end(&mut self, reason: Finish) -> Finish {
        let mut text = String::new();
        self.characters.finish(&mut text);
        self.pending.text += &self.stop.push(&text);
        self.pending.text += &self.stop.finish();
        self.tell();
        // Nobody there is no failure: the thread sees that before the next token.
        let _ = self.job.events.send(Event::Finish { choice: self.pending.choice, reason });
        reason
    }
    fn tell_in_time(&mut self) {
        let something = !self.pending.text.is_empty() || !self.pending.tokens.is_empty();
        if self.job.stream && something && self.told.is_none_or(|told| told.elapsed() >= TELL) {
            self.tell();
        }
    }
    fn tell(&mut self) {
        let Delta { choice, so_far, .. } = self.pending;
        let next = Delta { choice, so_far, ..Delta::default() };
        let mut delta = std::mem::replace(&mut self.pending, next);
        delta.time = self.begun.elapsed();
        let _ = self.job.events.send(Event::Delta(delta));
        self.told = Some(Instant::now());
    }
}

/// A failure of ours, with what can be done about it.
pub fn failed(error: session::Error) -> ApiError {
    let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    ApiError::internal(format!("{error}{hint}"))
}

/// What clients are told: they know two ends.
impl From<generation::Finish> for Finish {
    fn from(finish: generation::Finish) -> Finish {
        use generation::Finish::{Complete, ContextFull, EndOfText, Limit, Stopped};
        match finish {
            EndOfText | Complete | Stopped => Finish::Stop,
            Limit | ContextFull => Finish::Length,
        }
    }
}

/// A grammar that binds an answer.
struct Bound<'j> {
    constraint: Constraint,
    served: &'j Served,
    job: &'j Job,
}

impl generation::Constraint for Bound<'_> {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        Ok(self.constraint.mask(logits)?)
    }
    fn accept(&mut self, token: u32) -> Result<bool, ConstraintError> {
        Ok(self.constraint.accept(token, self.served.shown(token, self.job.markers))?)
    }
}

/// The probability of a token, and the `top` most probable ones.
fn probabilities(logits: &[f32], token: u32, top: usize) -> Chosen {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    let logprob =
        |id: u32| logits.get(id as usize).map_or(f32::NEG_INFINITY, |l| (f64::from(l - max) - sum.ln()) as f32);
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let descending = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let top = top.min(ids.len());
    if top > 0 && top < ids.len() {
        ids.select_nth_unstable_by(top - 1, descending);
    }
    ids.truncate(top);
    ids.sort_unstable_by(descending);
    Chosen { token, logprob: logprob(token), top: ids.into_iter().map(|id| (id, logprob(id))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_are_in_order() {
        let chosen = probabilities(&[0.0, 2.0, -1.0, 2.0], 0, 3);
        assert_eq!(chosen.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 0]);
        assert_eq!(chosen.logprob, chosen.top[2].1);
        let all = probabilities(&[0.0, 2.0, -1.0, 2.0], 0, 9);
        let sum: f32 = all.top.iter().map(|t| t.1.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert!(probabilities(&[1.0], 0, 0).top.is_empty());
    }
}
