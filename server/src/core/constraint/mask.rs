//! Answers that must have a form: a grammar says, token by token, which may come next.

use crate::core::constraint::bounds::STACK;
use gristmill_llm::sampling::TokenSet;
use gristmill_llm::tokenizer::{TokenKind, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use std::sync::Arc;

/// Compiles grammars for one vocabulary.
pub struct Grammars {
    factory: Option<ParserFactory>,
    /// The token that stands for all that end a text.
    end: u32,
    ends: Arc<[u32]>,
}

impl Grammars {
    /// For the tokens of a model with so many logits.
    pub fn new(tokenizer: &Tokenizer, vocabulary: usize) -> Grammars {
        let ends: Arc<[u32]> = tokenizer.eog().into();
        let end = ends.first().copied().unwrap_or(0);
        let words: Vec<Vec<u8>> = (0..vocabulary as u32).map(|id| word(tokenizer, id)).collect();
        let info = TokRxInfo::new(vocabulary as u32, end);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
        let factory = ParserFactory::new_simple(&env).ok().map(|mut factory| {
            factory.quiet();
            let limits = factory.limits_mut();
            // What a client reads is about its schema, not about the parser.
            limits.verbose_errors = false;
            // A schema comes from anybody: a tenth of the defaults, still more than real ones need. A state takes up to 2 kB.
            limits.max_grammar_size = 50_000;
            limits.max_lexer_states = 25_000;
            factory
        });
        Grammars { factory, end, ends }
    }
    /// A grammar, ready for an answer; `thinking` is what ends the reasoning that the answer begins within, which it does not bind.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn compile(&self, grammar: TopLevelGrammar, thinking: Option<&'static str>) -> Result<Constraint, String> {
        let Some(factory) = &self.factory else { return Err("grammars are not possible with this vocabulary".into()) };
        // It comes from a client, and the compiler is not ours: should it panic, the grammar is what is refused. The stack is for what
        // `Tally` lets through.
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || begin(factory, grammar));
            thread
                .map_err(|error| format!("it cannot be compiled now: {error}"))?
                .join()
                .map_err(|_| "it cannot be compiled")?
        });
        let matcher = compiled.map_err(|error| reason(&error))?;
        Ok(Constraint {
            matcher,
            end: self.end,
            ends: self.ends.clone(),
            thinking: thinking.map(|end| (end, String::new())),
        })
    }
}

/// A grammar at its beginning, from which something can follow.
fn begin(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher, String> {
    let matcher = Matcher::new(factory.create_parser(grammar));
    if let Some(error) = matcher.get_error() {
        return Err(error);
    }
    // One that allows nothing (it refers to itself alone, say) compiles nevertheless.
    match matcher.deep_clone().compute_mask_or_eos() {
        Ok(mask) if !mask.is_zero() => Ok(matcher),
        Ok(_) => Err(UNSATISFIABLE.into()),
        Err(error) if error.to_string().contains("NoExtension") => Err(UNSATISFIABLE.into()),
        Err(error) => Err(error.to_string()),
    }
}

const UNSATISFIABLE: &str = "no text can satisfy it";

/// What is wrong with a schema, in a line: without the grammar around it, which is ours and holds all of the schema.
fn reason(error: &str) -> String {
    if error.starts_with("panic") {
        return "it cannot be compiled".into();
    }
    let listed = |line: &&str| line.split_once(" | ").is_some_and(|(n, _)| n.trim().parse::<usize>().is_ok());
    let lines: Vec<&str> = error.lines().take_while(|line| !listed(line)).map(str::trim).collect();
    let line = lines.join(" ");
    let after = |text: &str, place: &str| text.split_once(place).map(|(_, rest)| rest.to_owned());
    let placed = if line.starts_with("at ") { after(&line, "): ") } else { None };
    let line = placed.unwrap_or(line);
    after(&line, "failed to compile JSON schema: ").unwrap_or(line)
}

/// A token as grammars see it: special ones cannot be spelt, and what prints nothing cannot be chosen.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match tokenizer.token_kind(id) {
        Some(TokenKind::Normal | TokenKind::UserDefined) => bytes.to_vec(),
        Some(TokenKind::Control) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        _ => Vec::new(),
    }
}

/// A grammar within an answer.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    end: u32,
    ends: Arc<[u32]>,
    /// What ends the reasoning, and the end of it so far, where it goes on.
    thinking: Option<(&'static str, String)>,
}

impl Constraint {
    /// Leaves those out that may not come next.
    ///
    /// # Errors
    /// When the grammar became too large to follow.
    pub fn mask(&mut self, tokens: &mut TokenSet) -> Result<(), String> {
        if self.thinking.is_some() {
            return Ok(());
        }
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
        let mut allowed = mask.as_slice().to_vec();
        allowed.resize(tokens.words().len(), 0);
        if mask.is_allowed(self.end) {
            for &end in &*self.ends {
                allowed.get_mut(end as usize / 32).into_iter().for_each(|word| *word |= 1 << (end % 32));
            }
        }
        tokens.keep(&allowed);
        Ok(())
    }
    /// Goes on with a token, whose text is `text`. Is the answer complete?
    ///
    /// # Errors
    /// As for [`Constraint::mask`].
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
        self.matcher.consume_token(token).map_err(|error| error.to_string())?;
        Ok(self.matcher.is_stopped())
    }
}
