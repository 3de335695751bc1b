//! One conversation with a model: what its cache holds, what is to be run, which token comes next.
//!
//! A step that fails leaves the session as it was before: the sequence has the tokens whose rows were computed, and nothing runs.

mod pieces;
mod settle;
mod states;
mod whole;

use crate::arch::Logits;
use crate::engine::{self, Draw, Engine, Part};
use crate::prefix::{BLOCK, Needs, Prefixes, Reuse};
use crate::sampling::{Sampler, SamplingError, not_a_number};
pub use pieces::rows_at_a_time;
use states::States;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

/// What a constraint on an answer says when it cannot be followed.
pub type ConstraintError = Box<dyn std::error::Error + Send + Sync>;

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
    /// What the answer must look like.
    #[error("what the answer must look like cannot be followed any further: {0}")]
    Constraint(#[source] ConstraintError),
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
    /// Is the device lost? Then nothing that is asked of this session, or of another on that device, will succeed again.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Engine(error) if error.is_lost())
    }
    /// What the user can do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Engine(error) => error.hint(),
            Error::Sampling(error) => error.hint(),
            Error::Constraint(_) => Some("a simpler schema or grammar may do".into()),
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

/// Tokens between two looks at the caller while a prompt is run.
const PIECE: usize = 512;
/// A prompt's rest of no more tokens is one small step.
const SHORT: usize = 64;

/// A model and one sequence of tokens in its cache, which may remember what earlier sequences left there.
pub struct Session {
    engine: Engine,
    /// What the cache holds.
    tokens: Vec<u32>,
    /// How many of them, from the first, have rows that depend on the tokens alone: see [`crate::prefix`].
    exact: usize,
    /// After the last of them; empty where it was not computed.
    logits: Vec<f32>,
    /// Does the device choose the tokens of the answer under way?
    chooses: bool,
    prefixes: Option<Prefixes>,
    /// Of a model that has some.
    states: Option<States>,
    /// Rows that were written, by steps or from the host, and not followed by logits that are numbers: they may hold NaN or infinity.
    /// Attention reads a few rows behind the sequence, with the factor 0, and 0 · NaN is not 0: what is left there must be numbers.
    doubtful: Range<usize>,
    /// Were the logits that were computed last no numbers? Then rows of the sequence from the first doubtful one on are none either.
    spoilt: bool,
}

impl Session {
    /// An empty one.
    pub fn new(engine: Engine) -> Session {
        Session {
            states: (engine.state_bytes() > 0).then(States::default),
            engine,
            tokens: Vec::new(),
            exact: 0,
            logits: Vec::new(),
            chooses: false,
            prefixes: None,
            doubtful: 0..0,
            spoilt: false,
        }
    }
    /// One that keeps what sequences have in common on the host, in at most that many bytes.
    pub fn with_prefixes(engine: Engine, bytes: usize) -> Session {
        Session { prefixes: Some(Prefixes::new(bytes)), ..Session::new(engine) }
    }
    /// The model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
    /// Tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
    /// Logits after the last token; none while the device chooses.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }
    /// Is there no room for another token?
    pub fn is_full(&self) -> bool {
        self.tokens.len() >= self.engine.context()
    }
    /// Bytes on the host that earlier sequences take.
    pub fn kept_bytes(&self) -> usize {
        self.prefixes.as_ref().map_or(0, Prefixes::bytes)
    }
    /// Forgets the sequence.
    pub fn clear(&mut self) {
        self.truncate(0);
    }
    /// Forgets everything, what is kept of earlier sequences too: after a fault of ours, when nothing may be what it should.
    pub fn reset(&mut self) {
        // What ran may have failed as well; nothing of it is used.
        let _ = self.engine.finish();
        self.clear();
        self.doubtful = 0..self.engine.context();
        self.prefixes = self.prefixes.as_ref().map(Prefixes::emptied);
    }
    fn truncate(&mut self, len: usize) {
        self.chooses = false;
        if len < self.tokens.len() {
            self.tokens.truncate(len);
            self.exact = self.exact.min(len);
            self.logits.clear();
            self.cut_states(len);
        }
    }
    /// States of no more tokens are of use.
    fn cut_states(&mut self, len: usize) {
        if let Some(states) = &mut self.states {
            states.cut(len);
        }
    }
    /// Back to where the sequence had `len` tokens and these logits: another answer to the same prompt.
    pub fn rewind(&mut self, len: usize, logits: &[f32]) {
        self.truncate(len);
        self.logits.clear();
        self.logits.extend_from_slice(logits);
    }
    /// Makes `prompt` the sequence, as [`Session::feed_with`] does with whatever can be reused.
    ///
    /// # Errors
    /// When the prompt is empty, does not leave room for one more token, or the model fails.
    pub fn feed(
        &mut self,
        prompt: &[u32],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Fed, Error> {
        self.feed_with(prompt, Reuse::Any, progress)
    }
    /// Makes `prompt` the sequence. What it shares with the start of the cache, or with a sequence that is kept, is not run again,
    /// as far as `reuse` allows. `progress` is told the tokens done and in all before every piece and may break off, which
    /// leaves the pieces done in the cache.
    ///
    /// # Errors
    /// When the prompt is empty, does not leave room for one more token, or the model fails.
    pub fn feed_with(
        &mut self,
        prompt: &[u32],
        reuse: Reuse,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Fed, Error> {
        let context = self.engine.context();
        if prompt.len() >= context {
            return Err(Error::Prompt { prompt: prompt.len(), context });
        }
        self.engine.check(prompt)?;
        let fed = self.fed(prompt, reuse, progress);
        self.recovered(fed)
    }
    fn fed(
        &mut self,
        prompt: &[u32],
        reuse: Reuse,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Fed, Error> {
        let start = Instant::now();
        self.finish()?;
        // The last tokens are not part of a block, so that there is always one to take the logits from.
        let whole = (prompt.len() - 1) / BLOCK * BLOCK;
        self.reuse(prompt, whole, reuse)?;
        self.settle()?;
        // The end of the answer before.
        self.copy_states()?;
        let shared = self.tokens.len();
        let mut fed = Fed { reused: shared, complete: true, ..Fed::default() };
        let total = prompt.len() - shared;
        // Exact rows cost one more step, of what does not fill a block: too much where nobody needs them, or for a short message.
        let worth = self.prefixes.is_some() && self.exact == shared && total > SHORT;
        let exact = reuse == Reuse::Exact || worth;
        let border = if exact { whole.saturating_sub(shared) } else { 0 };
        let (blocks, rest) = prompt[shared..].split_at(border);
        let pieces = blocks.chunks(PIECE).map(|p| (p, true)).chain(rest.chunks(PIECE).map(|p| (p, false)));
        for (piece, exact) in pieces {
            if progress(fed.run, total).is_break() {
                fed.complete = false;
                break;
            }
            let at = self.tokens.len();
            self.logits.clear();
            self.doubt(at..at + piece.len());
            self.lost();
            let logits = match exact {
                true => self.engine.forward_chunks(piece, at, Logits::None)?,
                false if at + piece.len() < prompt.len() => self.engine.forward_with(piece, at, Logits::None)?,
                false => self.engine.forward_with(piece, at, Logits::Last)?,
            };
            self.logits.extend_from_slice(logits);
            self.tokens.extend_from_slice(piece);
            if exact {
                self.exact = self.tokens.len();
            }
            self.trust_numbers();
            self.reached();
            fed.run += piece.len();
            // Where exact rows end, and where the prompt does.
            if fed.run == border || fed.run == total {
                self.copy_states()?;
            }
        }
        fed.time = start.elapsed();
        Ok(fed)
    }
    /// Makes the sequence the longest beginning of `prompt` that need not be run; its first `whole` tokens are blocks.
    fn reuse(&mut self, prompt: &[u32], whole: usize, reuse: Reuse) -> Result<(), Error> {
        self.drop_spoilt();
        let shared = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let mut have = match reuse {
            Reuse::Any => shared,
            Reuse::Exact => shared.min(self.exact).min(whole),
        };
        // The logits after the last token are needed: they may be there, or that token must be run again.
        if have == prompt.len() && (have < self.tokens.len() || self.logits.is_empty()) {
            have -= 1;
        }
        // A copy of at most `exact` tokens was taken when they were all there was.
        have = self.states.as_ref().map_or(have, |states| states.longest(have));
        if !self.engine.reaches(have) {
            have = 0;
        }
        if have < self.tokens.len() {
            self.keep()?;
        }
        let Some(prefixes) = &mut self.prefixes else {
            self.truncate(have);
            return Ok(());
        };
        let needs = Needs { states: self.states.is_some(), window: self.engine.window() };
        let found = prefixes.find_with(&prompt[..whole], reuse, &needs);
        if found.len() * BLOCK <= have {
            self.truncate(have);
            return Ok(());
        }
        // From the block on that is not wholly there. An error on the way leaves what is there.
        let first = have / BLOCK;
        self.tokens.truncate(first * BLOCK);
        if let Some(states) = &mut self.states {
            states.cut(first * BLOCK);
        }
        self.exact = self.exact.min(self.tokens.len());
        self.logits.clear();
        if needs.window.is_some() {
            let from = needs.first(found.len());
            self.doubtful = hull(&self.doubtful, from * BLOCK..found.len() * BLOCK);
            self.engine.write_window(from * BLOCK, found[from..].iter().map(|&block| prefixes.window(block)))?;
        }
        for (i, block) in found.iter().enumerate().skip(first) {
            self.doubtful = hull(&self.doubtful, i * BLOCK..(i + 1) * BLOCK);
            self.engine.write_rows(Part::All, i * BLOCK, prefixes.rows(*block))?;
            let end = (i + 1) * BLOCK;
            if block.exact && self.exact == i * BLOCK {
                self.exact = end;
            }
            self.tokens.extend_from_slice(&prompt[i * BLOCK..end]);
        }
        if let (Some(states), Some(last)) = (&mut self.states, found.last()) {
            states.copy(found.len() * BLOCK, prefixes.states(*last).to_vec());
        }
        Ok(())
    }
    /// Forgets rows that are no numbers: they are neither read again nor kept; what is kept already may be where they came from.
    fn drop_spoilt(&mut self) {
        if std::mem::take(&mut self.spoilt) {
            self.truncate(self.doubtful.start);
            self.lost();
            self.prefixes = self.prefixes.as_ref().map(Prefixes::emptied);
        }
    }
    /// Runs one more token.
    ///
    /// # Errors
    /// When the context is full, or the model fails.
    pub fn advance(&mut self, token: u32) -> Result<(), Error> {
        let advanced = self.advanced(token);
        self.recovered(advanced)
    }
    fn advanced(&mut self, token: u32) -> Result<(), Error> {
        self.chooses = false;
        let at = self.tokens.len();
        self.settle()?;
        self.doubt(at..at + 1);
        self.lost();
        let logits = self.engine.forward_with(&[token], at, Logits::Last)?;
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.tokens.push(token);
        self.trust_numbers();
        self.reached();
        Ok(())
    }
    /// The first token of an answer, chosen from the logits after the sequence.
    ///
    /// # Errors
    /// When nothing was fed, or there is nothing to choose from.
    pub fn first(&self, sampler: &mut Sampler) -> Result<u32, Error> {
        Ok(sampler.sample(&self.logits, &self.tokens)?)
    }
    /// Runs `token`, the last of the answer, and chooses what follows: on the device where that can and it pays. At most `left` more tokens
    /// will be asked for, this one included. Ends with [`Session::finish`].
    ///
    /// # Errors
    /// When the context is full, or the model or the choice fails.
    pub fn next(&mut self, token: u32, sampler: &mut Sampler, left: usize) -> Result<u32, Error> {
        let next = self.chosen(token, sampler, left);
        self.recovered(next)
    }
    fn chosen(&mut self, token: u32, sampler: &mut Sampler, left: usize) -> Result<u32, Error> {
        let position = self.tokens.len();
        // A step that was started ahead and is not wanted could not be taken back from states.
        let ahead = self.engine.device().overlaps() && self.states.is_none();
        if !self.chooses {
            let steps = left.min(self.engine.context().saturating_sub(position));
            let Some(draw) = Draw::of(sampler).filter(|draw| self.engine.decides(draw.choice)) else {
                self.advanced(token)?;
                return self.first(sampler);
            };
            self.settle()?;
            self.logits.clear();
            self.engine.decode(token, position, steps, &draw, ahead)?;
            self.chooses = true;
        }
        // A step that was started ahead writes a row more.
        self.doubt(position..(position + 1 + usize::from(ahead)).min(self.engine.context()));
        self.lost();
        match self.engine.next_token()? {
            Some(next) => {
                self.tokens.push(token);
                self.trust();
                self.reached();
                Ok(next)
            }
            // There is nothing to choose from: the logits, so that the host can say what is wrong with them. They are computed again, since a
            // step that was started after may have overwritten them.
            None => {
                self.advanced(token)?;
                self.first(sampler)
            }
        }
    }
    /// Ends the answer under way: nothing runs behind the caller's back.
    ///
    /// # Errors
    /// When the device fails; all the same nothing runs.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.chooses = false;
        Ok(self.engine.finish()?)
    }
    /// What a step gave. If it failed, nothing runs any more, and what it has left behind the sequence is not used.
    fn recovered<T>(&mut self, outcome: Result<T, Error>) -> Result<T, Error> {
        if outcome.is_err() {
            self.chooses = false;
            self.logits.clear();
            // The first failure is what there is to tell.
            let _ = self.engine.finish();
        }
        outcome
    }
    /// A step is about to change the states.
    fn lost(&mut self) {
        if let Some(states) = &mut self.states {
            states.lost();
        }
    }
    /// These rows are about to be written.
    fn doubt(&mut self, rows: Range<usize>) {
        self.doubtful = hull(&self.doubtful, rows);
    }
    /// The logits after the sequence are numbers: so is every row that they came from.
    fn trust(&mut self) {
        self.doubtful.start = self.doubtful.start.max(self.tokens.len());
    }
    fn trust_numbers(&mut self) {
        if self.logits.is_empty() {
            return;
        }
        self.spoilt = not_a_number(&self.logits).is_some();
        if !self.spoilt {
            self.trust();
        }
    }
    /// Clears the rows behind the sequence that may not be numbers, but for the next token's, which is written before anything reads it; and makes windows and states
    /// those after the sequence.
    fn settle(&mut self) -> Result<(), Error> {
        let from = self.doubtful.start.max(self.tokens.len() + 1);
        if from < self.doubtful.end {
            self.engine.clear_rows(from..self.doubtful.end)?;
            self.doubtful.end = from;
        }
        self.settle_window()?;
        self.settle_states()
    }
}

/// The least range that has both.
fn hull(a: &Range<usize>, b: Range<usize>) -> Range<usize> {
    if a.is_empty() { b } else { a.start.min(b.start)..a.end.max(b.end) }
}
