//! Starts matchers: compiles a grammar and computes its first mask, within bounds of time.

use super::bounds::STACK;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{CancellationHandle, Matcher, ParserFactory};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Returns the compiler of grammars for a vocabulary; `None` if it is not possible.
pub fn factory(words: &[Vec<u8>], end: u32) -> Option<ParserFactory> {
    let info = TokRxInfo::new(words.len() as u32, end);
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, words)));
    let mut factory = ParserFactory::new_simple(&env).ok()?;
    factory.quiet();
    let limits = factory.limits_mut();
    // Error messages go to clients and should concern their schema, not the parser.
    limits.verbose_errors = false;
    // Schemas come from untrusted clients. A tenth of the defaults is still more than real
    // schemas need; a lexer state takes up to 2 kB.
    limits.max_grammar_size = 50_000;
    limits.max_lexer_states = 25_000;
    // It runs before anything can be cancelled.
    limits.precompute_large_lexemes = false;
    Some(factory)
}

/// Compiles a grammar and checks its first mask.
///
/// # Errors
/// A description of what is wrong with the grammar.
pub fn start(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher, String> {
    // The grammar is untrusted and the compiler is third-party code: a panic refuses the
    // grammar. The stack suffices for the schemas that `Tally` admits.
    let compiled = std::thread::scope(|scope| {
        let (started, progress) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, || start_matcher(factory, grammar, started))
            .map_err(|error| format!("it cannot be compiled now: {error}"))?;
        // The channel closes with the end of the work.
        if let Ok(handle) = progress.recv()
            && matches!(
                progress.recv_timeout(MAX_FIRST_MASK),
                Err(RecvTimeoutError::Timeout)
            )
        {
            handle.cancel();
        }
        thread.join().map_err(|_| "it cannot be compiled")?
    });
    compiled.map_err(|error| reason(&error))
}

/// Compiles a grammar on this thread, without a time limit, and checks its first mask.
///
/// # Errors
/// A description of what is wrong with the grammar.
pub fn start_here(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<(), String> {
    let (started, _progress) = mpsc::channel();
    start_matcher(factory, grammar, started)
        .map(drop)
        .map_err(|error| reason(&error))
}

/// Maximum time of the first mask of a grammar.
const MAX_FIRST_MASK: Duration = Duration::from_secs(2);

/// Starts a matcher and checks that the grammar allows at least one text. Sends a handle that
/// cancels the check.
fn start_matcher(
    factory: &ParserFactory,
    grammar: TopLevelGrammar,
    started: mpsc::Sender<CancellationHandle>,
) -> Result<Matcher, String> {
    let matcher = Matcher::new(factory.create_parser(grammar));
    if let Some(error) = matcher.get_error() {
        return Err(error);
    }
    let mut trial = matcher.deep_clone().into_cancellable();
    if let Some(handle) = trial.cancellation_handle() {
        // The receiver outlives this thread.
        let _ = started.send(handle);
    }
    // A grammar that allows nothing, such as one that only refers to itself, compiles without an
    // error.
    match trial.compute_mask_or_eos() {
        Ok(mask) if !mask.is_zero() => Ok(matcher),
        Ok(_) => Err(UNSATISFIABLE.into()),
        Err(_) if trial.is_cancelled() => Err(TOO_SLOW.into()),
        Err(error) => Err(explain(&error.to_string())),
    }
}

/// Returns an error of the matcher in words for clients.
pub fn explain(error: &str) -> String {
    if error.contains("NoExtension") {
        UNSATISFIABLE.into()
    } else if error.contains("cancelled") {
        TOO_SLOW.into()
    } else {
        error.to_owned()
    }
}

/// Error of a grammar whose compilation or masks take too long.
pub const TOO_SLOW: &str = "it takes too long; use fewer intersections, counted repeats and \
                            ambiguous rules";

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
