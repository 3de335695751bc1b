//! One answer while it is made: logits in, a token chosen, text out.

use crate::constraint::Constraint;
use crate::error::ApiError;
use crate::job::{Delta, Event, Finish, Job};
use crate::model::Served;
use crate::probabilities::probabilities;
use gristmill_llm::sampling::{Sampler, StopMatcher};
use gristmill_llm::session::{self, Session};
use gristmill_llm::tokenizer::Utf8Stream;
use std::time::{Duration, Instant};

/// Text is told no more often than this, but for the first: faster than eyes, and each telling wakes two programs that take the cores
/// from the model. An answer slower than that is told token by token.
const TELL: Duration = Duration::from_millis(20);

/// Bytes of text, or tokens with their probabilities, that are told whoever waits for what: how large an answer becomes shall be known
/// while it grows. No page of text is longer, so that few answers are told in more than one piece for it.
const PENDING: usize = 4096;

/// An answer.
pub struct Generation<'j> {
    served: &'j Served,
    job: &'j Job,
    sampler: Sampler,
    constraint: Option<Constraint>,
    stop: StopMatcher,
    characters: Utf8Stream,
    /// The last token, which the model has not run yet.
    last: Option<u32>,
    /// Logits, where they are not taken as they are.
    logits: Vec<f32>,
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
        Ok(Generation {
            served,
            job,
            sampler: Sampler::new(sampling).map_err(|error| ApiError::internal(error.to_string()))?,
            constraint: job.constraint.clone(),
            stop: StopMatcher::new(job.stop.iter().cloned()),
            characters: Utf8Stream::default(),
            last: None,
            logits: Vec::new(),
            pending: Delta { choice, ..Delta::default() },
            begun: Instant::now(),
            told: None,
        })
    }
    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.pending.so_far
    }
    /// The next token: the one before is run, it is chosen and told; or why there is none.
    ///
    /// # Errors
    /// When the choice or the model fails.
    pub fn step(&mut self, session: &mut Session) -> Result<Option<Finish>, ApiError> {
        let token = self.choose(session)?;
        if self.served.tokenizer.is_eog(token) && !self.job.endless {
            return Ok(Some(self.end(Finish::Stop)));
        }
        self.pending.so_far += 1;
        if let Some(top) = self.job.logprobs {
            self.pending.tokens.push(probabilities(session.logits(), token, top));
        }
        let bytes = self.served.shown(token, self.job.markers);
        let complete = match &mut self.constraint {
            Some(constraint) => constraint.accept(token, bytes).map_err(ApiError::constraint)?,
            None => false,
        };
        let mut text = String::new();
        self.characters.push(bytes, &mut text);
        self.pending.text += &self.stop.push(&text);
        if complete || self.stop.stopped().is_some() {
            return Ok(Some(self.end(Finish::Stop)));
        }
        if self.pending.so_far >= self.job.limit || session.is_full() {
            return Ok(Some(self.end(Finish::Length)));
        }
        self.tell_in_time();
        self.last = Some(token);
        Ok(None)
    }
    fn choose(&mut self, session: &mut Session) -> Result<u32, ApiError> {
        let failed = |error: session::Error| ApiError::internal(error.to_string());
        let plain = self.constraint.is_none() && self.job.bias.is_empty();
        // Where nobody looks at the logits they may stay where they are.
        if let (Some(last), true, None) = (self.last, plain, self.job.logprobs) {
            let left = self.job.limit - self.pending.so_far;
            return session.next(last, &mut self.sampler, left).map_err(failed);
        }
        if let Some(last) = self.last {
            session.advance(last).map_err(failed)?;
        }
        if plain {
            return session.first(&mut self.sampler).map_err(failed);
        }
        self.logits.clear();
        self.logits.extend_from_slice(session.logits());
        for (token, bias) in &self.job.bias {
            if let Some(logit) = self.logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(&mut self.logits).map_err(ApiError::constraint)?;
        }
        self.sampler.sample(&self.logits, session.tokens()).map_err(|error| ApiError::internal(error.to_string()))
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
        let Delta { text, tokens, .. } = &self.pending;
        let something = !text.is_empty() || !tokens.is_empty();
        let due = self.job.stream && something && self.told.is_none_or(|told| told.elapsed() >= TELL);
        if due || text.len() >= PENDING || tokens.len() >= PENDING {
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
