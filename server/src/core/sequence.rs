//! A running sequence: turns the tokens of a [`generation`] into text for the client.

use crate::core::budget;
use crate::core::channel::Sender;
use crate::core::constraint::mask::Constraint;
use crate::core::engine_request::{EngineRequest, GenerationParams};
use crate::core::error::RequestError;
use crate::core::event::{Chosen, Delta, Event, Finish};
use crate::core::model::Served;
use crate::core::probabilities::probabilities;
use gristmill_llm::chat::ReasoningTexts;
use gristmill_llm::generation::{self, Generation, TokenStep};
use gristmill_llm::sampling::{RowParams, RowSampling, Sampler, StopMatcher, TokenSet};
use gristmill_llm::sched::{self, ConstraintError, ReasoningBudget};
use gristmill_llm::tokenizer::Utf8Stream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum time between two text events of a sequence, except for the first. Readers do not notice
/// it, and every event wakes two threads that take cores from the model. A slower sequence sends
/// each token at once.
const FLUSH_INTERVAL: Duration = Duration::from_millis(20);

/// One choice of a running request.
pub struct Sequence {
    /// Index of the choice among those of its prompt.
    pub nth: usize,
    /// Time of its first token.
    pub first_token: Option<Instant>,
    served: Arc<Served>,
    params: Arc<GenerationParams>,
    events: Arc<Sender>,
    tokens: Generation<'static>,
    stop: StopMatcher,
    characters: Utf8Stream,
    /// Text and tokens that have not been sent yet.
    pending: Delta,
    /// Approximate bytes of the answer so far, with its log-probabilities as JSON.
    bytes: usize,
    begun: Instant,
    told: Option<Instant>,
}

impl Sequence {
    /// Creates choice `nth` of the next prompt of a request.
    ///
    /// # Errors
    /// When its sampling parameters are out of range.
    pub fn new(
        request: &EngineRequest,
        params: &Arc<GenerationParams>,
        nth: usize,
    ) -> Result<Sequence, sched::Error> {
        let (served, choice) = (
            request.served.clone(),
            request.answered * params.choices + nth,
        );
        let mut sampling = params.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(nth as u64);
        let sampler = Sampler::new(sampling)?;
        let (text, ending) = (served.clone(), params.clone());
        let ends = move |token| {
            text.tokenizer.is_eog(token) && !ending.ignore_eos
                || ending.stop_tokens.contains(&token)
        };
        let mut tokens =
            Generation::new(sampler, params.limit, ends).with_bias(params.bias.clone());
        if let Some(constraint) = params.constraint.clone() {
            let bound = SequenceConstraint {
                constraint,
                served: served.clone(),
                markers: params.markers,
            };
            tokens = tokens.with_constraint(Box::new(bound));
        }
        if let Some(bound) = &params.reasoning {
            let text = served.clone();
            let bytes = move |token, out: &mut Vec<u8>| out.extend(text.shown(token, true));
            let texts = ReasoningTexts::for_markup(served.markup);
            let closing = bound.closing.clone();
            let budget = ReasoningBudget::new(texts, bound.tokens, bound.begun, closing, bytes);
            tokens = tokens.with_reasoning_budget(budget);
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
            pending: Delta {
                choice,
                ..Delta::default()
            },
            bytes: 0,
            begun: Instant::now(),
            told: None,
        })
    }
    /// Returns the number of tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens.tokens()
    }
    /// Returns the last token, which the model has not run yet.
    pub fn last_token(&self) -> Option<u32> {
        self.tokens.last_token()
    }
    /// Returns how the device may sample ahead of the host, with the maximum number of further
    /// tokens; `None` if it cannot.
    pub fn sampling(&self) -> Option<(RowSampling, usize)> {
        self.tokens.sampling()
    }
    /// Returns the parameters for device sampling over `vocabulary` logits after `history`. `None`
    /// if the host needs all logits, or the most probable token suffices.
    pub fn row_params(&mut self, history: &[u32], vocabulary: usize) -> Option<RowParams> {
        self.tokens.row_params(history, vocabulary)
    }
    /// Returns the generation, which chooses the next token.
    pub fn generation(&mut self) -> &mut Generation<'static> {
        &mut self.tokens
    }
    /// Returns whether the client gets log-probabilities.
    pub fn reports_logprobs(&self) -> bool {
        self.params.logprobs.is_some()
    }
    /// Takes the token of a step and sends its text; `logits` are those it was chosen from, if
    /// log-probabilities are requested. Returns why the sequence ends, if it does.
    pub fn take(&mut self, step: TokenStep, logits: &[f32]) -> Option<Finish> {
        let Some(token) = step.token else {
            let Some(finish) = step.finish else {
                unreachable!("{step:?} has neither a token nor an end")
            };
            return Some(self.end(finish.into()));
        };
        self.pending.so_far = self.tokens.tokens();
        self.pending.reasoning = self.tokens.reasoning_tokens();
        if let Some(top) = self.params.logprobs {
            let chosen = probabilities(logits, token, top);
            self.bytes += budget::bytes(&self.served, &chosen);
            self.pending.tokens.push(chosen);
        } else if self.params.token_ids {
            self.pending.tokens.push(Chosen {
                token,
                logprob: None,
                top: Vec::new(),
            });
        }
        let mut text = String::new();
        self.characters
            .push(self.served.shown(token, self.params.markers), &mut text);
        self.bytes += text.len();
        self.pending.text += &self.stop.push(&text);
        let stopped = self
            .stop
            .stopped()
            .map(|text| Finish::StopText(text.to_owned()));
        // The byte budget of a response that is not streamed is used up.
        let full = self
            .params
            .room
            .is_some_and(|room| self.bytes >= room)
            .then_some(Finish::Length);
        if let Some(finish) = stopped.or(step.finish.map(Finish::from)).or(full) {
            return Some(self.end(finish));
        }
        self.flush_if_due();
        None
    }
    /// Ends the sequence and sends the remaining text.
    pub fn end(&mut self, reason: Finish) -> Finish {
        let mut text = String::new();
        self.characters.finish(&mut text);
        self.pending.text += &self.stop.push(&text);
        self.pending.text += &self.stop.finish();
        self.send_delta();
        // A disconnected client is no failure: the worker cancels the request before its next step.
        let _ = self.events.send(Event::Finish {
            choice: self.pending.choice,
            reason: reason.clone(),
        });
        reason
    }
    /// Sends the pending text at once, before work that takes longer than [`FLUSH_INTERVAL`].
    pub fn flush(&mut self) {
        let something = !self.pending.text.is_empty() || !self.pending.tokens.is_empty();
        if self.params.stream && something {
            self.send_delta();
        }
    }
    fn flush_if_due(&mut self) {
        if self
            .told
            .is_none_or(|told| told.elapsed() >= FLUSH_INTERVAL)
        {
            self.flush();
        }
    }
    fn send_delta(&mut self) {
        let Delta {
            choice,
            so_far,
            reasoning,
            ..
        } = self.pending;
        let next = Delta {
            choice,
            so_far,
            reasoning,
            ..Delta::default()
        };
        let mut delta = std::mem::replace(&mut self.pending, next);
        delta.time = self.begun.elapsed();
        let _ = self.events.send(Event::Delta(delta));
        self.told = Some(Instant::now());
    }
}

/// Converts a failure into an error for the client: an unsatisfiable schema is the client's fault,
/// all else the server's.
pub fn failed(error: sched::Error) -> RequestError {
    if let sched::Error::Constraint(why) = error {
        return RequestError::constraint(why);
    }
    failed_step(&error)
}

/// Converts the failure of a step, which affects several requests, into an error for their clients.
pub fn failed_step(error: &sched::Error) -> RequestError {
    let hint = error
        .hint()
        .map(|hint| format!("; {hint}"))
        .unwrap_or_default();
    RequestError::internal(format!("{error}{hint}"))
}

/// Maps the end of a generation to the reason that clients get.
impl From<generation::Finish> for Finish {
    fn from(finish: generation::Finish) -> Finish {
        use generation::Finish::{Complete, ContextFull, EndOfText, Limit, Stopped};
        match finish {
            EndOfText | Complete | Stopped => Finish::Stop,
            Limit | ContextFull => Finish::Length,
        }
    }
}

/// Adapts a grammar constraint to the generation's interface.
struct SequenceConstraint {
    constraint: Constraint,
    served: Arc<Served>,
    markers: bool,
}

impl generation::Constraint for SequenceConstraint {
    fn mask(&mut self, tokens: &mut TokenSet) -> Result<(), ConstraintError> {
        Ok(self.constraint.mask(tokens)?)
    }
    fn accept(&mut self, token: u32) -> Result<bool, ConstraintError> {
        Ok(self
            .constraint
            .accept(token, self.served.shown(token, self.markers))?)
    }
}
