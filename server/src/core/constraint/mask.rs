//! Constrained decoding: computes, token by token, the mask of tokens that a grammar allows next.

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
    /// The first end-of-generation token; in grammars it stands for all of them.
    end: u32,
    ends: Arc<[u32]>,
}

impl Grammars {
    /// Compiler for a model with `vocabulary` logits.
    pub fn new(tokenizer: &Tokenizer, vocabulary: usize) -> Grammars {
        let ends: Arc<[u32]> = tokenizer.eog().into();
        let end = ends.first().copied().unwrap_or(0);
        let words: Vec<Vec<u8>> = (0..vocabulary as u32)
            .map(|id| token_bytes(tokenizer, id))
            .collect();
        let info = TokRxInfo::new(vocabulary as u32, end);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
        let factory = ParserFactory::new_simple(&env).ok().map(|mut factory| {
            factory.quiet();
            let limits = factory.limits_mut();
            // Error messages go to clients and should concern their schema, not the parser.
            limits.verbose_errors = false;
            // Schemas come from untrusted clients. A tenth of the defaults is still more than real
            // schemas need; a lexer state takes up to 2 kB.
            limits.max_grammar_size = 50_000;
            limits.max_lexer_states = 25_000;
            factory
        });
        Grammars { factory, end, ends }
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
        // The grammar is untrusted and the compiler is third-party code: a panic refuses the
        // grammar. The stack suffices for the schemas that `Tally` admits.
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, || start_matcher(factory, grammar));
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

/// Starts a matcher and checks that the grammar allows at least one text.
fn start_matcher(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher, String> {
    let matcher = Matcher::new(factory.create_parser(grammar));
    if let Some(error) = matcher.get_error() {
        return Err(error);
    }
    // A grammar that allows nothing, such as one that only refers to itself, compiles without an
    // error.
    match matcher.deep_clone().compute_mask_or_eos() {
        Ok(mask) if !mask.is_zero() => Ok(matcher),
        Ok(_) => Err(UNSATISFIABLE.into()),
        Err(error) if error.to_string().contains("NoExtension") => Err(UNSATISFIABLE.into()),
        Err(error) => Err(error.to_string()),
    }
}

const UNSATISFIABLE: &str = "no text can satisfy it";

/// Shortens a compiler error to one line, without the listing of the generated grammar, which has
/// the whole schema.
fn reason(error: &str) -> String {
    if error.starts_with("panic") {
        return "it cannot be compiled".into();
    }
    let listed = |line: &&str| {
        line.split_once(" | ")
            .is_some_and(|(n, _)| n.trim().parse::<usize>().is_ok())
    };
    let lines: Vec<&str> = error
        .lines()
        .take_while(|line| !listed(line))
        .map(str::trim)
        .collect();
    let line = lines.join(" ");
    let after = |text: &str, place: &str| text.split_once(place).map(|(_, rest)| rest.to_owned());
    let placed = if line.starts_with("at ") {
        after(&line, "): ")
    } else {
        None
    };
    let line = placed.unwrap_or(line);
    after(&line, "failed to compile JSON schema: ").unwrap_or(line)
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
}

impl Constraint {
    /// Removes the tokens that the grammar does not allow next.
    ///
    /// # Errors
    /// When the grammar's state grew beyond its limits.
    pub fn mask(&mut self, tokens: &mut TokenSet) -> Result<(), String> {
        if self.thinking.is_some() {
            return Ok(());
        }
        let mask = self
            .matcher
            .compute_mask_or_eos()
            .map_err(|error| error.to_string())?;
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
        self.matcher
            .consume_token(token)
            .map_err(|error| error.to_string())?;
        Ok(self.matcher.is_stopped())
    }
}
