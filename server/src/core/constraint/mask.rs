//! Constrained decoding: computes, token by token, the mask of tokens that a grammar allows next.

use super::check::Checker;
use super::start::{TOO_SLOW, explain, factory, start};
use super::watch;
use gristmill_llm::chat::{Helper, thread_time};
use gristmill_llm::sampling::TokenSet;
use gristmill_llm::tokenizer::{TokenKind, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::TokTrie;
use llguidance::{Matcher, ParserFactory};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Compiles grammars for one vocabulary.
pub struct Grammars {
    factory: Option<ParserFactory>,
    /// Compiles grammars first where the work can be ended; `None` trusts them.
    checker: Option<Checker>,
    compiled: Mutex<CompiledCache>,
    /// The first end-of-generation token; in grammars it stands for all of them.
    end: u32,
    ends: Arc<[u32]>,
    /// Set of the tokens that begin with a digit.
    digits: Arc<[u32]>,
}

impl Grammars {
    /// Compiler for a model with `vocabulary` logits. Grammars are first compiled in a process of
    /// `helper`; without one they are trusted.
    pub fn new(tokenizer: &Tokenizer, vocabulary: usize, helper: Option<Helper>) -> Grammars {
        let ends: Arc<[u32]> = tokenizer.eog().into();
        let end = ends.first().copied().unwrap_or(0);
        let words: Vec<Vec<u8>> = (0..vocabulary as u32)
            .map(|id| token_bytes(tokenizer, id))
            .collect();
        let mut digits = vec![0; vocabulary.div_ceil(32)];
        for (id, word) in words.iter().enumerate() {
            if word.first().is_some_and(u8::is_ascii_digit) {
                digits[id / 32] |= 1 << (id % 32);
            }
        }
        let checker = helper.map(|helper| Checker::new(helper, &words, end));
        Grammars {
            factory: factory(&words, end),
            checker,
            compiled: Mutex::default(),
            end,
            ends,
            digits: digits.into(),
        }
    }
    /// Compiles a grammar. `thinking` is the text that ends the reasoning which the answer begins
    /// with; reasoning is unconstrained.
    ///
    /// # Errors
    /// A description of what is wrong with the grammar.
    pub fn compile(
        &self,
        grammar: TopLevelGrammar,
        thinking: Option<&'static str>,
    ) -> Result<Constraint, String> {
        let Some(factory) = &self.factory else {
            return Err("grammars are not possible with this vocabulary".into());
        };
        let text = serde_json::to_vec(&grammar).map_err(|error| error.to_string())?;
        let key = blake3::hash(&text);
        let cache = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cache().get(&key);
        let matcher = if let Some(matcher) = found {
            matcher
        } else {
            if let Some(checker) = &self.checker {
                checker.check(grammar.clone())?;
            }
            let matcher = start(factory, grammar)?;
            cache().put(key, text.len(), matcher.deep_clone());
            matcher
        };
        let matcher = matcher.into_cancellable();
        Ok(Constraint {
            matcher,
            end: self.end,
            ends: self.ends.clone(),
            thinking: thinking.map(|end| (end, String::new())),
            digits: self.digits.clone(),
            run: None,
            effort: Effort::default(),
        })
    }
}

/// Matchers of the grammars that were compiled last, before their first token.
#[derive(Default)]
struct CompiledCache(VecDeque<(blake3::Hash, usize, Matcher)>);

/// Maximum grammars in the cache, and maximum bytes of their texts.
const MAX_CACHED: (usize, usize) = (32, 128 << 10);

impl CompiledCache {
    fn get(&mut self, key: &blake3::Hash) -> Option<Matcher> {
        let at = self.0.iter().position(|entry| entry.0 == *key)?;
        let entry = self.0.remove(at)?;
        let matcher = entry.2.deep_clone();
        self.0.push_back(entry);
        Some(matcher)
    }
    fn put(&mut self, key: blake3::Hash, bytes: usize, matcher: Matcher) {
        if bytes > MAX_CACHED.1 {
            return;
        }
        self.0.push_back((key, bytes, matcher));
        let total = |entries: &VecDeque<(_, usize, _)>| entries.iter().map(|entry| entry.1).sum();
        while self.0.len() > MAX_CACHED.0 || MAX_CACHED.1 < total(&self.0) {
            self.0.pop_front();
        }
    }
}

/// Processor time of a constraint within one answer.
#[derive(Clone, Copy, Default)]
struct Effort {
    spent: Duration,
    steps: u32,
}

/// Processor time that a constraint may take in any answer, and more per step: most masks take less
/// than a millisecond, and while one is computed, no other sequence runs.
const MAX_EFFORT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(5));

impl Effort {
    /// Runs a step on this thread.
    ///
    /// # Errors
    /// When the steps so far took too long.
    fn spend<T>(&mut self, step: impl FnOnce() -> T) -> Result<T, String> {
        if self.spent > MAX_EFFORT.0 + MAX_EFFORT.1 * self.steps {
            return Err(TOO_SLOW.into());
        }
        let begin = thread_time();
        let done = step();
        self.spent += thread_time().saturating_sub(begin);
        self.steps += 1;
        Ok(done)
    }
}

/// Returns a token's bytes for the grammar: control tokens get a marker, so that text cannot match
/// them; tokens without text get no bytes and are never allowed.
fn token_bytes(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match tokenizer.token_kind(id) {
        Some(TokenKind::Normal | TokenKind::UserDefined) => bytes.to_vec(),
        Some(TokenKind::Control) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        _ => Vec::new(),
    }
}

/// State of a grammar within one answer.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    end: u32,
    ends: Arc<[u32]>,
    /// While the model is reasoning: the text that ends the reasoning, and the last part of the
    /// reasoning so far.
    thinking: Option<(&'static str, String)>,
    /// Set of the tokens that begin with a digit.
    digits: Arc<[u32]>,
    /// Bound of the digits in a row, if there is one.
    run: Option<DigitRun>,
    /// Processor time that masks took so far.
    effort: Effort,
}

/// Bound of the digits in a row outside strings, as a weak model may never end a number.
#[derive(Clone, Default)]
struct DigitRun {
    most: usize,
    /// Digits at the end of the text.
    count: usize,
    /// Whether the text ends within a string.
    quoted: bool,
    /// Whether the text ends with a backslash in a string that escapes the next character.
    escaped: bool,
}

impl DigitRun {
    fn push(&mut self, text: &[u8]) {
        for &c in text {
            let escaped = std::mem::take(&mut self.escaped);
            self.count = if c.is_ascii_digit() && !self.quoted {
                self.count + 1
            } else {
                0
            };
            match c {
                b'"' if !escaped => self.quoted = !self.quoted,
                b'\\' if self.quoted => self.escaped = !escaped,
                _ => {}
            }
        }
    }
}

impl Constraint {
    /// Bounds the digits in a row outside JSON strings.
    pub fn bound_digits(&mut self, most: usize) {
        self.run = Some(DigitRun {
            most,
            ..DigitRun::default()
        });
    }
    /// Removes the tokens that the grammar does not allow next.
    ///
    /// # Errors
    /// When the grammar's state grew beyond its limits.
    pub fn mask(&mut self, tokens: &mut TokenSet) -> Result<(), String> {
        if self.thinking.is_some() {
            return Ok(());
        }
        let matcher = &mut self.matcher;
        let mask = self.effort.spend(|| {
            let handle = matcher.cancellation_handle();
            let _limit = handle.map(watch::cancel_late);
            matcher.compute_mask_or_eos()
        })?;
        let mask = mask.map_err(|error| explain(&error.to_string()))?;
        let mut allowed = mask.as_slice().to_vec();
        allowed.resize(tokens.words().len(), 0);
        if mask.is_allowed(self.end) {
            for &end in &*self.ends {
                allowed
                    .get_mut(end as usize / 32)
                    .into_iter()
                    .for_each(|word| *word |= 1 << (end % 32));
            }
        }
        if self.run.as_ref().is_some_and(|run| run.count >= run.most) {
            let ended = allowed.iter().zip(&*self.digits);
            let ended: Vec<u32> = ended.map(|(allowed, digits)| allowed & !digits).collect();
            if ended.iter().any(|word| *word != 0) {
                allowed = ended;
                allowed.resize(tokens.words().len(), 0);
            }
        }
        tokens.keep(&allowed);
        Ok(())
    }
    /// Advances by a token with the bytes `text`. Returns whether the answer is complete.
    ///
    /// # Errors
    /// The same as for [`Constraint::mask`].
    pub fn accept(&mut self, token: u32, text: &[u8]) -> Result<bool, String> {
        if let Some((end, thought)) = &mut self.thinking {
            thought.push_str(&String::from_utf8_lossy(text));
            if thought.contains(*end) {
                self.thinking = None;
            } else if let Some((cut, _)) = thought.char_indices().rev().nth(end.len()) {
                thought.drain(..cut);
            }
            return Ok(false);
        }
        if let Some(run) = &mut self.run {
            run.push(text);
        }
        let matcher = &mut self.matcher;
        let consumed = self.effort.spend(|| {
            let handle = matcher.cancellation_handle();
            let _limit = handle.map(watch::cancel_late);
            matcher.consume_token(token)
        })?;
        consumed.map_err(|error| explain(&error.to_string()))?;
        Ok(self.matcher.is_stopped())
    }
}
