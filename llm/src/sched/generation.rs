//! Generation of one sequence: chooses each token from a step's output, and
//! decides whether to continue.

use super::error::{ConstraintError, Error};
use super::reasoning_budget::ReasoningBudget;
use crate::sampling::{
    Candidates, MAX_CHANGED_LOGITS, RowParams, RowSampling, Sampler, SamplingMethod, TokenSet,
};

/// Reason for the end of a generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model produced an end-of-text token.
    EndOfText,
    /// The constraint allows no further token.
    Complete,
    /// The requested number of tokens was reached.
    Limit,
    /// The context is full.
    ContextFull,
    /// The caller stopped it.
    Stopped,
}

impl Finish {
    /// Describes the reason in words.
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

/// Constrained decoding: a grammar or schema that masks tokens.
pub trait Constraint {
    /// Removes the tokens that may not come next.
    ///
    /// # Errors
    /// When the constraint cannot be followed any further.
    fn mask(&mut self, tokens: &mut TokenSet) -> Result<(), ConstraintError>;
    /// Advances by a token. Returns whether the answer is complete.
    ///
    /// # Errors
    /// As for [`Constraint::mask`].
    fn accept(&mut self, token: u32) -> Result<bool, ConstraintError>;
}

/// The token that a step produced, and whether the generation ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenStep {
    /// The next token of the answer; `None` if the answer had already ended or this token ends it.
    pub token: Option<u32>,
    /// Reason for the end, if the generation ends.
    pub finish: Option<Finish>,
}

/// Output of a step for one sequence.
#[derive(Clone, Copy, Debug)]
pub enum ModelOutput<'a> {
    /// The logits after the last token.
    Logits(&'a [f32]),
    /// The next token, if it is known without logits: see
    /// [`Generation::is_greedy`] and [`Generation::choose_from_candidates`].
    Token(u32),
}

/// A running generation: sampler, limits and constraint of one sequence.
pub struct Generation<'a> {
    sampler: Sampler,
    limit: usize,
    ends: Box<dyn Fn(u32) -> bool + 'a>,
    bias: Vec<(u32, f32)>,
    constraint: Option<Box<dyn Constraint + 'a>>,
    budget: Option<ReasoningBudget<'a>>,
    wants_logits: bool,
    tokens: usize,
    /// The last token, which the model has not run yet.
    last: Option<u32>,
    /// Scratch copy of the logits for biases and the grammar mask.
    logits: Vec<f32>,
    /// The grammar mask of the next token, once computed.
    allowed: Option<TokenSet>,
    /// Tokens with logits changed by biases or penalties, as last sent to the device.
    changed: Vec<u32>,
}

impl<'a> Generation<'a> {
    /// Creates a generation of at most `limit` tokens. A token that `ends` accepts ends it and is
    /// not part of the answer.
    pub fn new(sampler: Sampler, limit: usize, ends: impl Fn(u32) -> bool + 'a) -> Generation<'a> {
        Generation {
            sampler,
            limit,
            ends: Box::new(ends),
            bias: Vec::new(),
            constraint: None,
            budget: None,
            wants_logits: false,
            tokens: 0,
            last: None,
            logits: Vec::new(),
            allowed: None,
            changed: Vec::new(),
        }
    }
    /// Adds biases to the logits of these tokens; ids outside the vocabulary are ignored.
    pub fn with_bias(self, bias: Vec<(u32, f32)>) -> Generation<'a> {
        Generation { bias, ..self }
    }
    /// Constrains the tokens by a grammar or schema.
    pub fn with_constraint(self, constraint: Box<dyn Constraint + 'a>) -> Generation<'a> {
        Generation {
            constraint: Some(constraint),
            ..self
        }
    }
    /// Bounds the tokens of its reasoning.
    pub fn with_reasoning_budget(self, budget: ReasoningBudget<'a>) -> Generation<'a> {
        Generation {
            budget: Some(budget),
            ..self
        }
    }
    /// Chooses every token from logits on the host, which the caller then sees. The tokens are the
    /// same; reading the logits costs time.
    pub fn with_logits(self) -> Generation<'a> {
        Generation {
            wants_logits: true,
            ..self
        }
    }
    /// Number of tokens generated so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
    /// Number of tokens of reasoning among them; `None` without a budget.
    pub fn reasoning_tokens(&self) -> Option<usize> {
        self.budget.as_ref().map(ReasoningBudget::used)
    }
    /// The last generated token, which the model has not run yet.
    pub fn last_token(&self) -> Option<u32> {
        self.last
    }
    /// Returns whether the next choice needs only the most probable token.
    pub fn is_greedy(&self) -> bool {
        self.is_plain()
            && !self.wants_logits
            && self.sampler.choice() == Some(SamplingMethod::Greedy)
    }
    fn is_plain(&self) -> bool {
        self.constraint.is_none() && self.bias.is_empty()
    }
    /// Returns how the device may sample tokens without the host, and how many may follow;
    /// `None` if it cannot.
    pub fn sampling(&self) -> Option<(RowSampling, usize)> {
        let alone = self.is_plain() && !self.wants_logits;
        let free = self.budget.as_ref().and_then(ReasoningBudget::free);
        let free = free.unwrap_or(usize::MAX);
        Some((
            RowSampling::new(&self.sampler).filter(|_| alone && free > 0)?,
            free.min(self.limit - self.tokens.min(self.limit)),
        ))
    }
    /// Returns the parameters with which a device computes candidates for
    /// the token after `history`.
    ///
    /// `None` if the most probable token suffices, all logits are needed, or the parameters exceed
    /// the device's limits.
    pub fn row_params(&mut self, history: &[u32], vocabulary: usize) -> Option<RowParams> {
        if self.is_greedy() || self.wants_logits || self.tokens >= self.limit {
            return None;
        }
        self.changed.clear();
        self.changed.extend(
            self.bias
                .iter()
                .map(|bias| bias.0)
                .chain(self.sampler.recent(history).iter().copied()),
        );
        self.changed.retain(|&id| (id as usize) < vocabulary);
        self.changed.sort_unstable();
        self.changed.dedup();
        // Errors of the constraint are reported by `take`.
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
    /// Chooses the token after `history` from candidates for the last parameters; `None` if
    /// all logits are needed.
    pub fn choose_from_candidates(&mut self, ranked: &Candidates, history: &[u32]) -> Option<u32> {
        let mut logits: Vec<f32> = ranked.raw.clone();
        for (token, bias) in &self.bias {
            if let Ok(at) = self.changed.binary_search(token) {
                logits[at] += bias;
            }
        }
        let allowed = |id: u32| {
            self.allowed
                .as_ref()
                .is_none_or(|tokens| tokens.contains(id))
        };
        let changed = self
            .changed
            .iter()
            .copied()
            .zip(logits)
            .filter(|&(id, _)| allowed(id));
        self.sampler
            .sample_candidates(ranked, &changed.collect::<Vec<_>>(), history)
    }
    /// Computes the grammar mask if there is a constraint and the mask is not yet known.
    fn compute_allowed(&mut self, vocabulary: usize) -> Result<(), Error> {
        if let (Some(constraint), None) = (&mut self.constraint, &self.allowed) {
            let mut tokens = TokenSet::all(vocabulary);
            constraint.mask(&mut tokens).map_err(Error::Constraint)?;
            self.allowed = Some(tokens);
        }
        Ok(())
    }
    /// Chooses the token after `history` from a step's output. `history` has all tokens so far.
    ///
    /// # Errors
    /// When sampling or the constraint fails.
    pub fn take(
        &mut self,
        given: ModelOutput,
        history: &[u32],
        context: usize,
    ) -> Result<TokenStep, Error> {
        if self.tokens >= self.limit {
            return Ok(TokenStep {
                token: None,
                finish: Some(Finish::Limit),
            });
        }
        let forced = self.budget.as_ref().and_then(ReasoningBudget::forced);
        let token = match (forced, given) {
            (Some(token), _) | (None, ModelOutput::Token(token)) => token,
            (None, ModelOutput::Logits(logits)) if self.is_plain() => {
                self.sampler.sample(logits, history)?
            }
            (None, ModelOutput::Logits(logits)) => self.changed_choice(logits, history)?,
        };
        self.accept(token, history.len() >= context)
    }
    /// Advances by a token; `full` if the context has no room for another.
    fn accept(&mut self, token: u32, full: bool) -> Result<TokenStep, Error> {
        let is_forced = self.budget.as_ref().is_some_and(|b| b.forced().is_some());
        if !is_forced && (self.ends)(token) {
            return Ok(TokenStep {
                token: None,
                finish: Some(Finish::EndOfText),
            });
        }
        self.tokens += 1;
        self.last = Some(token);
        self.allowed = None;
        if let Some(budget) = &mut self.budget {
            budget.accept(token);
        }
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
        Ok(TokenStep {
            token: Some(token),
            finish,
        })
    }
    /// Samples from logits with biases and the grammar mask applied.
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
            let masked = (0u32..)
                .zip(&mut self.logits)
                .filter(|&(id, _)| !tokens.contains(id));
            masked.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        Ok(self.sampler.sample(&self.logits, history)?)
    }
}
