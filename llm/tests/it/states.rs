//! Conversations with a model that keeps states: what is reused gives what is computed afresh, though a state cannot be cut.

use crate::parity_support::tables::{data, rms};
use crate::session_support::{answer, exact_prefix, feed, fresh};
use gristmill_backend::{Opened, Options, open};
use gristmill_llm::engine::{Compiled, Engine, Forecast, Settings, Weights};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::prefix::{BLOCK, Reuse};
use gristmill_llm::sched::{Batcher, SequenceOptions};
use gristmill_llm::session::Session;
use gristmill_uop::Scalar;
use std::ops::ControlFlow;

/// What logits of steps cut in other places may differ by, in their deviation: all is exact but for the order of sums.
const NEAR: f64 = 1e-4;

fn file() -> Gguf {
    Gguf::open(data("families/qwen35-q8_0.gguf")).expect("a GGUF file")
}

fn opened() -> Opened {
    open("cpu", &Options { exact: true, quick: true, ..Options::default() }).expect("a device")
}

fn settings(parallel: Option<usize>) -> Settings {
    Settings { context: Some(256), cache: Scalar::F32, chunk: 64, parallel, ..Settings::default() }
}

/// An engine in exact arithmetic, with states of so many sequences.
fn engine(parallel: Option<usize>) -> Engine {
    Engine::load(&file(), opened(), settings(parallel), &|_| ()).expect("an engine")
}

/// A session that keeps so many bytes of prefixes.
fn session(keep: Option<usize>) -> Session {
    let engine = engine(None);
    match keep {
        None => Session::new(engine),
        Some(keep) => Session::with_prefixes(engine, keep),
    }
}

fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + seed * 101 + i * i % 13) % 500).collect()
}

#[test]
fn an_exact_prefix_changes_no_bit() {
    let (mut session, mut scratch) = (session(Some(64 << 20)), session(Some(0)));
    let text = text(1, 200);
    for len in [20, BLOCK + 1, 101, 170] {
        let begun = [1, BLOCK, len / 2, len];
        let fed = exact_prefix([&mut session, &mut scratch], &text, len, &begun, 10);
        let least = |begun: usize| (begun - 1) / BLOCK * BLOCK;
        assert!(fed.iter().zip(begun).all(|(fed, begun)| fed.reused >= least(begun)), "{len}: {fed:?}");
    }
}

#[test]
fn a_conversation_goes_on_and_is_edited() {
    for keep in [None, Some(64 << 20)] {
        let (mut session, mut scratch) = (session(keep), session(None));
        let near = |session: &Session, scratch: &mut Session, prompt: &[u32]| {
            let expected = fresh(scratch, prompt, Reuse::Any);
            let error = rms(session.logits(), &expected);
            assert!(error < NEAR, "{} tokens: {error}", prompt.len());
        };
        // Two turns: all of the first is there.
        let first = text(1, 50);
        feed(&mut session, &first, Reuse::Any);
        near(&session, &mut scratch, &first);
        let said = answer(&mut session, 12);
        let held = session.tokens().len();
        assert!(held >= first.len() + said.len() - 1);
        let second = [&session.tokens()[..held], &text(2, 20)].concat();
        assert_eq!(feed(&mut session, &second, Reuse::Any).reused, held);
        near(&session, &mut scratch, &second);
        answer(&mut session, 9);
        // Another second question: from the end of the first answer on.
        let other = [&second[..held], &text(3, 15)].concat();
        assert_eq!(feed(&mut session, &other, Reuse::Any).reused, held);
        near(&session, &mut scratch, &other);
        // Another answer to the first question: its last token once more, from the copy before it.
        let fed = feed(&mut session, &first, Reuse::Any);
        assert!(fed.run <= first.len(), "{fed:?}");
        near(&session, &mut scratch, &first);
        // A beginning that ends where no copy was taken.
        let cut = [&first[..41], &text(4, 9)].concat();
        assert!(feed(&mut session, &cut, Reuse::Any).reused <= 41);
        near(&session, &mut scratch, &cut);
    }
}

#[test]
fn conversations_are_kept_side_by_side() {
    let mut session = session(Some(64 << 20));
    let prompts: Vec<Vec<u32>> = (0..3).map(|i| text(i, 150)).collect();
    for prompt in &prompts {
        assert_eq!(feed(&mut session, prompt, Reuse::Any).reused, 0);
        answer(&mut session, 8);
    }
    for prompt in &prompts {
        assert_eq!(feed(&mut session, prompt, Reuse::Any).reused, 149 / BLOCK * BLOCK);
    }
    // Nothing fits: everything is run again, and right.
    let (mut none, mut scratch) = (self::session(Some(1000)), self::session(None));
    for prompt in &prompts[..2] {
        assert_eq!(feed(&mut none, prompt, Reuse::Any).reused, 0);
        assert!(rms(none.logits(), &fresh(&mut scratch, prompt, Reuse::Any)) < NEAR);
    }
    assert!(none.kept_bytes() <= 1000);
}

#[test]
fn a_rewound_session_answers_as_before() {
    let mut session = session(None);
    let prompt = text(5, 77);
    feed(&mut session, &prompt, Reuse::Exact);
    let logits = session.logits().to_vec();
    let first = answer(&mut session, 12);
    session.rewind(77, &logits);
    assert_eq!(answer(&mut session, 12), first);
    // To where no copy was taken: what lies before is run again.
    let at = session.tokens().len() - 5;
    let next = session.tokens()[at];
    session.rewind(at, &logits);
    session.advance(next).expect("a step");
    let expected = fresh(&mut self::session(None), session.tokens(), Reuse::Any);
    assert!(rms(session.logits(), &expected) < NEAR);
}

#[test]
fn scores_do_not_depend_on_what_came_before() {
    let (mut session, mut scratch) = (session(Some(64 << 20)), session(None));
    let prompt = text(6, 100);
    let scores = |session: &mut Session| {
        let mut rows: Vec<f32> = Vec::new();
        let each = &mut |_: usize, logits: &[f32]| {
            rows.extend_from_slice(logits);
            ControlFlow::Continue(())
        };
        session.score(&prompt, each).expect("scored");
        rows
    };
    feed(&mut session, &text(7, 90), Reuse::Any);
    answer(&mut session, 5);
    assert_eq!(scores(&mut session), scores(&mut scratch));
}

fn batcher(sequences: usize) -> Batcher {
    Batcher::new(engine(Some(sequences))).unwrap_or_else(|_| panic!("answers share steps"))
}

/// Runs a prompt to its end and gives it so many of the tokens that are most probable: how much of it was found, the logits behind the prompt, and all tokens that have been run.
fn turn(batcher: &mut Batcher, prompt: &[u32], reuse: Reuse, answer: usize) -> (usize, Vec<f32>, Vec<u32>) {
    let options = SequenceOptions { reuse, batch_invariant: reuse == Reuse::Exact };
    let id = batcher.add(prompt, options).expect("a prompt");
    let (mut logits, mut said) = (Vec::new(), 0);
    loop {
        let Some(of) = batcher.step(&mut |_, _| None).expect("a step").pop() else { continue };
        let row = batcher.logits(of).expect("logits").to_vec();
        let token = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("a token");
        if said == 0 {
            logits = row;
        }
        if said == answer {
            break;
        }
        said += 1;
        batcher.push(id, token as u32);
    }
    let (found, tokens) = (batcher.scheduler().found(id), batcher.scheduler().tokens(id).to_vec());
    batcher.remove(id);
    (found.expect("it was admitted"), logits, tokens)
}

#[test]
fn conversations_over_a_pool_go_on_from_copies() {
    let (mut batcher, mut scratch) = (batcher(2), session(None));
    let mut near = |prompt: &[u32], logits: &[f32]| {
        let error = rms(logits, &fresh(&mut scratch, prompt, Reuse::Any));
        assert!(error < NEAR, "{} tokens: {error}", prompt.len());
    };
    let first = text(1, 100);
    let (found, logits, said) = turn(&mut batcher, &first, Reuse::Any, 12);
    assert_eq!((found, said.len()), (0, 112));
    near(&first, &logits);
    // The next turn, and another one in its place.
    for seed in [2, 3] {
        let second = [&said[..], &text(seed, 20)].concat();
        let (found, logits, _) = turn(&mut batcher, &second, Reuse::Any, 5);
        assert_eq!(found, said.len());
        near(&second, &logits);
    }
    // The same again, from where exact rows end, with the same bits.
    let (found, again, _) = turn(&mut batcher, &first, Reuse::Exact, 0);
    assert_eq!((found, again == logits), (99 / BLOCK * BLOCK, true));
    // Where nobody has gone on: from the first token, and the next from where that one left.
    for (seed, expected) in [(4, 0), (5, 32)] {
        let other = [&first[..50], &text(seed, 60)].concat();
        let (found, logits, _) = turn(&mut batcher, &other, Reuse::Any, 0);
        assert_eq!(found, expected);
        near(&other, &logits);
    }
    assert!(batcher.kept_bytes() > 0 && batcher.load().kept_states > 0, "{:?}", batcher.load());
}

#[test]
fn a_prompt_that_is_run_apart_has_states_of_its_own() {
    let (mut batcher, mut alone) = (batcher(2), engine(None));
    let tokens = text(8, 200);
    let expected = alone.forward(&tokens, 0, true).expect("logits").to_vec();
    let (_, before, _) = turn(&mut batcher, &tokens[..90], Reuse::Exact, 3);
    let mut found = Vec::new();
    let flow = batcher.apart(&tokens, 64, &mut |engine, piece, at| {
        found.extend_from_slice(engine.forward(piece, at, true)?);
        Ok(ControlFlow::Continue(()))
    });
    assert_eq!(flow.expect("run"), Some(ControlFlow::Continue(())));
    assert!(rms(&found, &expected) < NEAR);
    assert_eq!(turn(&mut batcher, &tokens[..90], Reuse::Exact, 0).1, before, "nobody's states were touched");
}

#[test]
fn a_pool_has_the_bytes_of_its_states() {
    let none = Weights::default();
    let file = file();
    let compiled = Compiled::new(&file, opened(), settings(Some(3)), &none, &|_| ()).expect("compiled");
    let engine = engine(Some(3));
    assert_eq!(engine.state_rows(), 9);
    // What is allocated is what was said, but for tables of numbers of pages.
    let tables = engine.memory_bytes() - compiled.memory(&none);
    assert!(tables < 4096, "{tables} bytes that nobody counted");
    let forecast = |parallel| Forecast::of(&file, &settings(parallel), u64::MAX / 2).expect("one").beside;
    let model = engine.model();
    let rows = (3 * 256 - 2048) * model.cache_row_bytes(Scalar::F32) as i64;
    let states = 8 * model.state_bytes() as i64;
    assert_eq!(forecast(Some(3)) as i64 - forecast(None) as i64, rows + states);
}
