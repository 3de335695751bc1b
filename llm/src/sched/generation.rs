//! The generation of one sequence: chooses each token from a step's output, and decides whether another follows.

use super::error::{ConstraintError, Error};
use crate::sampling::{Candidates, MAX_CHANGED_LOGITS, RowParams, RowSampling, Sampler, SamplingMethod, TokenSet};

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model said so.
    EndOfText,
    /// Its constraint allows nothing more.
    Complete,
    /// As many tokens as were asked for.
    Limit,
    /// The context is full.
    ContextFull,
    /// The caller broke it off.
    Stopped,
}

impl Finish {
    /// In words.
    pub fn describe(self) -> &'static str {
        match self {
            Finish::EndOfText => "end of text",
            Finish::Complete => "complete",
            Finish::Limit => "token limit",
            Finish::ContextFull => "context full",
            Finish::Stopped => "stopped",
        }
    }
}

/// What every answer must look like, token by token.
pub trait Constraint {
    /// Leaves those out that may not come next.
    ///
    /// # Errors
    /// When the constraint cannot be followed any further.
    fn mask(&mut self, tokens: &mut TokenSet) -> Result<(), ConstraintError>;
    /// Goes on with a token. Is the answer complete?
    ///
    /// # Errors
    /// As for [`Constraint::mask`].
    fn accept(&mut self, token: u32) -> Result<bool, ConstraintError>;
}

/// The token that a step led to, and why the generation ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenStep {
    /// The next token of the answer; none if it had ended already, or this token ended it.
    pub token: Option<u32>,
    /// Why nothing follows, if nothing does.
    pub finish: Option<Finish>,
}

/// What a step of the model gave.
#[derive(Clone, Copy, Debug)]
pub enum ModelOutput<'a> {
    /// The logits after the sequence.
    Logits(&'a [f32]),
    /// The token after it, where that is known: see [`Generation::is_greedy`] and [`Generation::choose_from_candidates`].
    Token(u32),
}

/// An answer while it is made.
pub struct Generation<'a> {
    sampler: Sampler,
    limit: usize,
    ends: Box<dyn Fn(u32) -> bool + 'a>,
    bias: Vec<(u32, f32)>,
    constraint: Option<Box<dyn Constraint + 'a>>,
    wants_logits: bool,
    tokens: usize,
    /// The last token, which the model has not run yet.
    last: Option<u32>,
    /// Logits, where they are not taken as they are.
    logits: Vec<f32>,
    /// What the constraint lets come next, once it was asked.
    allowed: Option<TokenSet>,
    /// Tokens whose logits are changed by biases or penalties, as they were asked for.
    changed: Vec<u32>,
}

impl<'a> Generation<'a> {
    /// Of at most `limit` tokens, up to one that `ends` it, which is no part of it.
    pub fn new(sampler: Sampler, limit: usize, ends: impl Fn(u32) -> bool + 'a) -> Generation<'a> {
        Generation {
            sampler,
            limit,
            ends: Box::new(ends),
            bias: Vec::new(),
            constraint: None,
            wants_logits: false,
            tokens: 0,
            last: None,
            logits: Vec::new(),
            allowed: None,
            changed: Vec::new(),
        }
    }
    /// Adds these numbers to the logits of these tokens; tokens that there are not are passed over.
    pub fn with_bias(self, bias: Vec<(u32, f32)>) -> Generation<'a> {
        Generation { bias, ..self }
    }
    /// Holds the answer to that.
    pub fn with_constraint(self, constraint: Box<dyn Constraint + 'a>) -> Generation<'a> {
        Generation { constraint: Some(constraint), ..self }
    }
    /// Every token is chosen from logits on the host, which the caller sees: the same tokens, at the cost of reading them.
    pub fn with_logits(self) -> Generation<'a> {
        Generation { wants_logits: true, ..self }
    }
    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
    /// The last of them: the model has not run it yet.
    pub fn last(&self) -> Option<u32> {
        self.last
    }
    /// Will the most probable token do for the next choice, whatever the logits?
    pub fn is_greedy(&self) -> bool {
        self.is_plain() && !self.wants_logits && self.sampler.choice() == Some(SamplingMethod::Greedy)
    }
    fn is_plain(&self) -> bool {
        self.constraint.is_none() && self.bias.is_empty()
    }
    /// How a device may choose its tokens before the host has seen the one before, and how many may still come; none where it cannot.
    pub fn sampling(&self) -> Option<(RowSampling, usize)> {
        let alone = self.is_plain() && !self.wants_logits;
        Some((RowSampling::new(&self.sampler).filter(|_| alone)?, self.limit - self.tokens.min(self.limit)))
    }
    /// What a device is to be asked about the logits over so many tokens after `history`, so that the next one can be chosen without them; nothing where the most probable one will do, all
    /// logits are wanted, or that cannot be asked.
    pub fn row_params(&mut self, history: &[u32], vocabulary: usize) -> Option<RowParams> {
        if self.is_greedy() || self.wants_logits || self.tokens >= self.limit {
            return None;
        }
        self.changed.clear();
        self.changed.extend(self.bias.iter().map(|bias| bias.0).chain(self.sampler.recent(history).iter().copied()));
        self.changed.retain(|&id| (id as usize) < vocabulary);
        self.changed.sort_unstable();
        self.changed.dedup();
        // What is wrong with a constraint is told where its answer goes on.
        if self.changed.len() > MAX_CHANGED_LOGITS || self.compute_allowed(vocabulary).is_err() {
            return None;
        }
        let draws = RowSampling::for_batch(&self.sampler).unwrap_or(RowSampling::greedy());
        Some(RowParams {
            allowed: self.allowed.clone(),
            changed: self.changed.clone(),
            sampling: draws,
            position: history.len(),
        })
    }
    /// The token after `history`, of what was asked last; none where all logits are wanted to know it.
    pub fn choose_from_candidates(&mut self, ranked: &Candidates, history: &[u32]) -> Option<u32> {
        let mut logits: Vec<f32> = ranked.raw.clone();
        for (token, bias) in &self.bias {
            if let Ok(at) = self.changed.binary_search(token) {
                logits[at] += bias;
            }
        }
        let allowed = |id: u32| self.allowed.as_ref().is_none_or(|tokens| tokens.contains(id));
        let changed = self.changed.iter().copied().zip(logits).filter(|&(id, _)| allowed(id));
        self.sampler.sample_candidates(ranked, &changed.collect::<Vec<_>>(), history)
    }
    /// Sees to it that it is known what the constraint, if there is one, lets come next.
    fn compute_allowed(&mut self, vocabulary: usize) -> Result<(), Error> {
        if let (Some(constraint), None) = (&mut self.constraint, &self.allowed) {
            let mut tokens = TokenSet::all(vocabulary);
            constraint.mask(&mut tokens).map_err(Error::Constraint)?;
            self.allowed = Some(tokens);
        }
        Ok(())
    }
    /// The next token, of what a step gave after all tokens so far: `history`, after which there is room for another one.
    ///
    /// # Errors
    /// When the choice or the constraint fails.
    pub fn take(&mut self, given: ModelOutput, history: &[u32], context: usize) -> Result<TokenStep, Error> {
        if self.tokens >= self.limit {
            return Ok(TokenStep { token: None, finish: Some(Finish::Limit) });
        }
        let token = match given {
            ModelOutput::Token(token) => token,
            ModelOutput::Logits(logits) if self.is_plain() => self.sampler.sample(logits, history)?,
            ModelOutput::Logits(logits) => self.changed_choice(logits, history)?,
        };
        self.accept(token, history.len() >= context)
    }
    /// Goes on with a token; `full` where the model can run no other.
    fn accept(&mut self, token: u32, full: bool) -> Result<TokenStep, Error> {
        if (self.ends)(token) {
            return Ok(TokenStep { token: None, finish: Some(Finish::EndOfText) });
        }
        self.tokens += 1;
        self.last = Some(token);
        self.allowed = None;
        let complete = match &mut self.constraint {
            Some(constraint) => constraint.accept(token).map_err(Error::Constraint)?,
            None => false,
        };
        let finish = match () {
            () if complete => Some(Finish::Complete),
            () if self.tokens >= self.limit => Some(Finish::Limit),
            () if full => Some(Finish::ContextFull),
            () => None,
        };
        Ok(TokenStep { token: Some(token), finish })
    }
    /// A token of logits to which biases are added, and which the constraint has masked.
    fn changed_choice(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, Error> {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        for (token, bias) in &self.bias {
            if let Some(logit) = self.logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        self.compute_allowed(logits.len())?;
        if let Some(tokens) = &self.allowed {
            let masked = (0u32..).zip(&mut self.logits).filter(|&(id, _)| !tokens.contains(id));
            masked.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        Ok(self.sampler.sample(&self.logits, history)?)
    }
}
