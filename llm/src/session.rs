//! One conversation with a model: what its cache holds, what is to be run, when an answer ends.

use crate::arch::Logits;
use crate::engine::{self, Draw, Engine};
use crate::sampling::{Sampler, SamplingError};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Why a session could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The choice of a token.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A prompt that leaves no room for an answer.
    #[error("the prompt has {prompt} tokens, and the context {context}")]
    Prompt {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
}

impl Error {
    /// What the user can do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Engine(error) => error.hint(),
            Error::Sampling(error) => error.hint(),
            Error::Prompt { .. } => Some("shorten the prompt, or give a larger --ctx".into()),
        }
    }
}

/// What was done with a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fed {
    /// Tokens that were in the cache already.
    pub reused: usize,
    /// Tokens that were run.
    pub run: usize,
    /// Time that took.
    pub time: Duration,
    /// Was it all? Not if the caller broke it off.
    pub complete: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model said so.
    EndOfText,
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
            Finish::Limit => "token limit",
            Finish::ContextFull => "context full",
            Finish::Stopped => "stopped",
        }
    }
}

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Generated {
    /// Tokens, the one that ended the text not counted.
    pub tokens: usize,
    /// Time of the model's steps, choice of tokens included; that of the caller is not.
    pub time: Duration,
    /// Steps of the model in that time: the first token comes from the prompt's logits.
    pub steps: usize,
    /// Why it ended.
    pub finish: Finish,
}

/// Tokens between two looks at the caller while a prompt is run.
const PIECE: usize = 512;

/// A model and one sequence of tokens in its cache.
pub struct Session {
    engine: Engine,
    /// What the cache holds.
    tokens: Vec<u32>,
    /// After the last of them; empty where it was not computed.
    logits: Vec<f32>,
}

impl Session {
    /// An empty one.
    pub fn new(engine: Engine) -> Session {
        Session { engine, tokens: Vec::new(), logits: Vec::new() }
    }
    /// The model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
    /// Tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
    /// Logits after the last token.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }
    /// Forgets the sequence.
    pub fn clear(&mut self) {
        self.truncate(0);
    }
    fn truncate(&mut self, len: usize) {
        if len < self.tokens.len() {
            self.tokens.truncate(len);
            self.logits.clear();
        }
    }
    /// Makes `prompt` the sequence. What it shares with the start of the cache stays there; only the rest is run. `progress`
    /// is told the tokens done and in all after every piece and may break off, which leaves the pieces done in the cache.
    ///
    /// # Errors
    /// When the prompt is empty, does not leave room for one more token, or the model fails.
    pub fn feed(
        &mut self,
        prompt: &[u32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Fed, Error> {
        let context = self.engine.context();
        if prompt.len() >= context {
            return Err(Error::Prompt { prompt: prompt.len(), context });
        }
        self.engine.check(prompt)?;
        let mut shared = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // The logits after the last token are needed: they may be there, or that token must be run again.
        if shared == prompt.len() && (shared < self.tokens.len() || self.logits.is_empty()) {
            shared -= 1;
        }
        self.truncate(shared);
        let start = Instant::now();
        let mut fed = Fed { reused: shared, complete: true, ..Fed::default() };
        let total = prompt.len() - shared;
        for piece in prompt[shared..].chunks(PIECE) {
            if progress(fed.run, total).is_break() {
                fed.complete = false;
                break;
            }
            let last = fed.run + piece.len() == total;
            let wanted = if last { Logits::Last } else { Logits::None };
            let logits = self.engine.forward_with(piece, self.tokens.len(), wanted)?;
            self.logits.clear();
            self.logits.extend_from_slice(logits);
            self.tokens.extend_from_slice(piece);
            fed.run += piece.len();
        }
        fed.time = start.elapsed();
        Ok(fed)
    }
    /// Continues the sequence: at most `limit` tokens, up to one that `ends` it (which the callback does not get and the
    /// cache does not keep). The callback gets each token as it is chosen and may break off.
    ///
    /// # Errors
    /// When nothing was fed, or the model or the choice fails.
    pub fn generate(
        &mut self,
        sampler: &mut Sampler,
        limit: usize,
        ends: &dyn Fn(u32) -> bool,
        each: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generated, Error> {
        let mut out = Generated { tokens: 0, time: Duration::ZERO, steps: 0, finish: Finish::Limit };
        // Does the device choose? From the second token on: the first comes from the prompt's logits.
        let mut chooses = false;
        while out.tokens < limit {
            let start = Instant::now();
            let chosen = if chooses { self.chosen(sampler)? } else { None };
            chooses = chosen.is_some();
            let token = match chosen {
                Some(token) => token,
                None => sampler.sample(&self.logits, &self.tokens)?,
            };
            out.time += start.elapsed();
            if ends(token) {
                out.finish = Finish::EndOfText;
                break;
            }
            out.tokens += 1;
            if each(token).is_break() {
                out.finish = Finish::Stopped;
                break;
            }
            if out.tokens == limit {
                break;
            }
            let (position, context) = (self.tokens.len(), self.engine.context());
            if position >= context {
                out.finish = Finish::ContextFull;
                break;
            }
            let start = Instant::now();
            if !chooses {
                let steps = (limit - out.tokens).min(context - position);
                match sampler.choice().filter(|&c| self.engine.decides(c)).and_then(|_| Draw::of(sampler, steps)) {
                    Some(draw) => {
                        let ahead = self.engine.device().overlaps();
                        self.logits.clear();
                        self.engine.decode(token, position, steps, &draw, ahead)?;
                        chooses = true;
                    }
                    None => self.forward(token)?,
                }
            }
            self.tokens.push(token);
            out.time += start.elapsed();
            out.steps += 1;
        }
        self.engine.finish()?;
        Ok(out)
    }
    /// Runs a token behind the others, for its logits.
    fn forward(&mut self, token: u32) -> Result<(), Error> {
        let logits = self.engine.forward_with(&[token], self.tokens.len(), Logits::Last)?;
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        Ok(())
    }
    /// What the device chose after the last token. If there is nothing to choose from, the logits, so that the host can say what is wrong
    /// with them.
    fn chosen(&mut self, sampler: &mut Sampler) -> Result<Option<u32>, Error> {
        let token = self.engine.next_token()?;
        if token.is_some() {
            sampler.used(usize::from(sampler.choice().is_some_and(|c| c.draws())));
        } else if let Some(last) = self.tokens.pop() {
            // Computed again: a step that was started after may have overwritten them.
            self.forward(last)?;
            self.tokens.push(last);
        }
        Ok(token)
    }
}
