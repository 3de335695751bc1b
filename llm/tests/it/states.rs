//! Conversations with a model that keeps states: what is reused gives what is computed afresh, though a state cannot be cut.

use crate::parity_support::tables::{data, rms};
use crate::session_support::{answer, exact_prefix, feed, fresh};
use gristmill_backend::{Options, open};
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::prefix::{BLOCK, Reuse};
use gristmill_llm::session::Session;
use gristmill_uop::Scalar;
use std::ops::ControlFlow;

/// What logits of steps cut in other places may differ by, in their deviation: all is exact but for the order of sums.
const NEAR: f64 = 1e-4;

/// A session in exact arithmetic, which keeps so many bytes of prefixes.
fn session(keep: Option<usize>) -> Session {
    let file = Gguf::open(data("families/qwen35-q8_0.gguf")).expect("a GGUF file");
    let opened = open("cpu", &Options { exact: true, quick: true, ..Options::default() }).expect("a device");
    let settings = Settings { context: Some(256), cache: Scalar::F32, chunk: 64, ..Settings::default() };
    let engine = Engine::load(&file, opened, settings, &|_| ()).expect("an engine");
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
