//! Prefixes that are reused: what they save, and that they change nothing where nothing may change.

use crate::parity_support;
use crate::session_support::{answer, exact_prefix, feed};
use gristmill_backend::{Options, open};
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::language;
use gristmill_llm::prefix::{BLOCK, Reuse};
use gristmill_llm::session::Session;
use std::ops::ControlFlow;

fn session(keep: usize) -> (Session, Vec<u32>) {
    let file = Gguf::open(parity_support::asset("demo-glm-Q4_0.gguf")).expect("the demo model");
    let opened = open("cpu", &Options { quick: true, ..Options::default() }).expect("a device");
    let engine = Engine::load(&file, opened, Settings::default(), &|_| ()).expect("an engine");
    let tokenizer = language::tokenizer(file.metadata()).expect("a tokenizer");
    let story =
        "Once upon a time there was a green frog who asked: what is 17 plus 25? The capital of Japan is Tokyo. ";
    (Session::with_prefixes(engine, keep), tokenizer.encode(&story.repeat(60), false, false))
}

#[test]
fn an_exact_prefix_changes_no_bit() {
    let (mut session, text) = session(64 << 20);
    for len in [20, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 600, 1200] {
        session.clear();
        let (mut scratch, _) = self::session(0);
        let begun = [1, BLOCK, len / 2, len];
        let fed = exact_prefix([&mut session, &mut scratch], &text, len, &begun, 30);
        let least = |begun: usize| (begun - 1) / BLOCK * BLOCK;
        assert!(fed.iter().zip(begun).all(|(fed, begun)| fed.reused >= least(begun)), "{len}: {fed:?}");
    }
}

#[test]
fn conversations_are_kept_side_by_side() {
    let (mut session, text) = session(64 << 20);
    let prompts: Vec<&[u32]> = (0..4).map(|i| &text[i * 7..i * 7 + 200]).collect();
    for prompt in &prompts {
        assert_eq!(feed(&mut session, prompt, Reuse::Any).reused, 0);
        answer(&mut session, 50);
    }
    assert!(session.kept_bytes() > 0);
    for prompt in &prompts {
        // With the answer, the next turn reuses all whole blocks of both.
        let fed = feed(&mut session, prompt, Reuse::Any);
        assert!(fed.reused >= 199 / BLOCK * BLOCK && fed.run <= BLOCK, "{fed:?}");
    }
    let shared = [&text[..100], &text[300..400]].concat();
    assert_eq!(feed(&mut session, &shared, Reuse::Any).reused, 100 / BLOCK * BLOCK);
}

#[test]
fn a_broken_off_prompt_leaves_what_was_done() {
    let (mut session, text) = session(64 << 20);
    let mut pieces = 0;
    let fed = session.feed_with(&text[..1300], Reuse::Exact, &mut |_, _| {
        pieces += 1;
        if pieces > 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(fed.map(|fed| (fed.run, fed.complete)).expect("fed"), (1024, false));
    assert_eq!(feed(&mut session, &text[..1300], Reuse::Exact).reused, 1024);
}

#[test]
fn a_rewound_session_answers_as_before() {
    let (mut session, text) = session(0);
    feed(&mut session, &text[..77], Reuse::Exact);
    let logits = session.logits().to_vec();
    let first = answer(&mut session, 20);
    session.rewind(77, &logits);
    assert_eq!(answer(&mut session, 20), first);
    assert!(session.tokens().starts_with(&text[..77]));
}

#[test]
fn a_prompt_is_scored_by_what_its_tokens_are_predicted_from() {
    let (mut session, text) = session(64 << 20);
    let prompt = &text[..700];
    feed(&mut session, &text[300..900], Reuse::Any);
    let mut rows: Vec<(usize, Vec<f32>)> = Vec::new();
    let each = &mut |token: usize, logits: &[f32]| {
        rows.push((token, logits.to_vec()));
        ControlFlow::Continue(())
    };
    let fed = session.score(prompt, each).expect("scored");
    assert_eq!((fed.run, fed.complete), (700, true));
    assert!(rows.iter().map(|row| row.0).eq(1..700));
    let after = session.logits().to_vec();
    // Activations are rounded to eight bits, which moves logits by 1.4 % (RMS): steps of other kinds round otherwise. Rows of another token are nothing alike.
    let squares = |row: &mut dyn Iterator<Item = f32>| row.map(|x| x * x).sum::<f32>();
    let apart = |a: &[f32], b: &[f32]| {
        (squares(&mut a.iter().zip(b).map(|(a, b)| a - b)) / squares(&mut a.iter().copied())).sqrt()
    };
    for at in [1, 40, 512, 513, 699] {
        let (mut scratch, _) = self::session(0);
        feed(&mut scratch, &prompt[..at], Reuse::Any);
        let (logits, row) = (scratch.logits(), &rows[at - 1].1);
        let (same, other) = (apart(logits, row), apart(logits, &rows[at.max(2) - 2].1));
        assert!(same < 0.1 && (at == 1 || other > 2.0 * same), "{at}: {same} {other}");
    }
    // What was there before is kept, and what is there now is gone on with.
    assert!(session.kept_bytes() > 0);
    let fed = feed(&mut session, prompt, Reuse::Any);
    assert_eq!((fed.run, session.logits()), (0, &after[..]));
}

#[test]
fn hidden_rows_are_those_of_every_token_wherever_steps_are_cut() {
    let (mut session, text) = session(0);
    let width = session.engine().model().width();
    let rows_of = |session: &mut Session, prompt: &[u32]| {
        let mut all = Vec::new();
        let each = &mut |rows: &[f32]| {
            all.extend_from_slice(rows);
            ControlFlow::Continue(())
        };
        assert!(session.hidden(prompt, each).expect("rows").complete);
        all
    };
    let whole = rows_of(&mut session, &text[..600]);
    assert_eq!(whole.len(), 600 * width);
    // A token's row depends on those before it alone: of a shorter prompt it is the same, but for what another kind of step rounds.
    for len in [1, 33, 513] {
        let short = rows_of(&mut session, &text[..len]);
        let (row, other) = (&whole[(len - 1) * width..len * width], &short[(len - 1) * width..]);
        let length = |row: &mut dyn Iterator<Item = f32>| row.map(|x| x * x).sum::<f32>().sqrt();
        let apart = length(&mut row.iter().zip(other).map(|(a, b)| a - b));
        assert!(apart < 0.05 * length(&mut row.iter().copied()), "{len}: {apart}");
        assert!(length(&mut row.iter().copied()) > 0.0);
    }
    // Nothing of it is in the way of what comes next.
    assert!(feed(&mut session, &text[..600], Reuse::Any).complete);
}
