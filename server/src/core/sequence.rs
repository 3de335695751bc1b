//! A running sequence: tokens from the core's [`generation`], text to the client.

use crate::core::budget;
use crate::core::channel::Sender;
use crate::core::constraint::mask::Constraint;
use crate::core::engine_request::{EngineRequest, GenerationParams};
use crate::core::error::RequestError;
use crate::core::event::{Delta, Event, Finish};
use crate::core::model::Served;
use crate::core::probabilities::probabilities;
use gristmill_llm::generation::{self, Generation, TokenStep};
use gristmill_llm::sampling::{RowParams, RowSampling, Sampler, StopMatcher, TokenSet};
use gristmill_llm::sched::{self, ConstraintError};
use gristmill_llm::tokenizer::Utf8Stream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Text is told no more often than this, but for the first: faster than eyes, and each telling wakes two programs that take the cores
/// from the model. An answer slower than that is told token by token.
const FLUSH_INTERVAL: Duration = Duration::from_millis(20);

/// One choice of a running request.
pub struct Sequence {
    /// Which of its prompt's choices it is.
    pub nth: usize,
    /// When it had its first token.
    pub first_token: Option<Instant>,
    served: Arc<Served>,
    params: Arc<GenerationParams>,
    events: Arc<Sender>,
    tokens: Generation<'static>,
    stop: StopMatcher,
    characters: Utf8Stream,
    /// What was not told yet.
    pending: Delta,
    /// Bytes of the answer so far, about, with its probabilities as JSON.
    bytes: usize,
    begun: Instant,
    told: Option<Instant>,
}

impl Sequence {
    /// Creates choice `nth` of the next prompt of a request.
    ///
    /// # Errors
    /// When its sampling parameters are out of range.
    pub fn new(request: &EngineRequest, params: &Arc<GenerationParams>, nth: usize) -> Result<Sequence, sched::Error> {
        let (served, choice) = (request.served.clone(), request.answered * params.choices + nth);
        let mut sampling = params.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(nth as u64);
        let sampler = Sampler::new(sampling)?;
        let (text, ignore_eos) = (served.clone(), params.ignore_eos);
        let ends = move |token| text.tokenizer.is_eog(token) && !ignore_eos;
        let mut tokens = Generation::new(sampler, params.limit, ends).with_bias(params.bias.clone());
        if let Some(constraint) = params.constraint.clone() {
            let bound = Bound { constraint, served: served.clone(), markers: params.markers };
            tokens = tokens.with_constraint(Box::new(bound));
        }
        if params.logprobs.is_some() {
            tokens = tokens.with_logits();
        }
        Ok(Sequence {
            nth,
            first_token: None,
            served,
            params: params.clone(),
            events: request.events.clone(),
            tokens,
            stop: StopMatcher::new(params.stop.iter().cloned()),
            characters: Utf8Stream::default(),
            pending: Delta { choice, ..Delta::default() },
            bytes: 0,
            begun: Instant::now(),
            told: None,
        })
    }
    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens.tokens()
    }
    /// The last token, which the model has not run yet.
    pub fn last(&self) -> Option<u32> {
        self.tokens.last()
    }
    /// How a device may choose its tokens before the host has seen the one before, and how many may still come; none where it cannot.
    pub fn draws(&self) -> Option<(RowSampling, usize)> {
        self.tokens.sampling()
    }
    /// What a device is to be asked about the logits over so many tokens after `history`; nothing where all of them are wanted, or the most probable token will do.
    pub fn ask(&mut self, history: &[u32], vocabulary: usize) -> Option<RowParams> {
        self.tokens.row_params(history, vocabulary)
    }
    /// The generation, to choose its next token.
    pub fn generation(&mut self) -> &mut Generation<'static> {
        &mut self.tokens
    }
    /// Does the client get the probabilities of tokens?
    pub fn tells_logprobs(&self) -> bool {
        self.params.logprobs.is_some()
    }
    /// Sends the token of a step, chosen from these logits if the host has seen them. Returns why the
    /// sequence ends, if it does.
    pub fn take(&mut self, step: TokenStep, logits: &[f32]) -> Option<Finish> {
        let Some(token) = step.token else {
            let Some(finish) = step.finish else { unreachable!("{step:?} has neither a token nor an end") };
            return Some(self.end(finish.into()));
        };
        self.pending.so_far = self.tokens.tokens();
        if let Some(top) = self.params.logprobs {
            let chosen = probabilities(logits, token, top);
            self.bytes += budget::bytes(&self.served, &chosen);
            self.pending.tokens.push(chosen);
        }
        let mut text = String::new();
        self.characters.push(self.served.shown(token, self.params.markers), &mut text);
        self.bytes += text.len();
        self.pending.text += &self.stop.push(&text);
        let stopped = self.stop.stopped().map(|text| Finish::StopText(text.to_owned()));
        // What may be told at once is used up.
        let full = self.params.room.is_some_and(|room| self.bytes >= room).then_some(Finish::Length);
        if let Some(finish) = stopped.or(step.finish.map(Finish::from)).or(full) {
            return Some(self.end(finish));
        }
        self.tell_in_time();
        None
    }
    /// Nothing follows: what was held back is told.
    pub fn end(&mut self, reason: Finish) -> Finish {
        let mut text = String::new();
        self.characters.finish(&mut text);
        self.pending.text += &self.stop.push(&text);
        self.pending.text += &self.stop.finish();
        self.tell();
        // Nobody there is no failure: the thread sees that before the next token.
        let _ = self.events.send(Event::Finish { choice: self.pending.choice, reason: reason.clone() });
        reason
    }
    /// Tells what was held back so far: before what takes longer than the time between two tellings.
    pub fn flush(&mut self) {
        let something = !self.pending.text.is_empty() || !self.pending.tokens.is_empty();
        if self.params.stream && something {
            self.tell();
        }
    }
    fn tell_in_time(&mut self) {
        if self.told.is_none_or(|told| told.elapsed() >= FLUSH_INTERVAL) {
            self.flush();
        }
    }
    fn tell(&mut self) {
        let Delta { choice, so_far, .. } = self.pending;
        let next = Delta { choice, so_far, ..Delta::default() };
        let mut delta = std::mem::replace(&mut self.pending, next);
        delta.time = self.begun.elapsed();
        let _ = self.events.send(Event::Delta(delta));
        self.told = Some(Instant::now());
    }
}

/// What a client is told of a failure: a schema that cannot be followed is its own affair, all else is ours, and comes with what can be
/// done about it.
pub fn failed(error: sched::Error) -> RequestError {
    if let sched::Error::Constraint(why) = error {
        return RequestError::constraint(why);
    }
    failed_step(&error)
}

/// The same of a failure of a step, which several are told.
pub fn failed_step(error: &sched::Error) -> RequestError {
    let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    RequestError::internal(format!("{error}{hint}"))
}

/// What clients are told of ends.
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
struct Bound {
    constraint: Constraint,
    served: Arc<Served>,
    markers: bool,
}

impl generation::Constraint for Bound {
    fn mask(&mut self, tokens: &mut TokenSet) -> Result<(), ConstraintError> {
        Ok(self.constraint.mask(tokens)?)
    }
    fn accept(&mut self, token: u32) -> Result<bool, ConstraintError> {
        Ok(self.constraint.accept(token, self.served.shown(token, self.markers))?)
    }
}
