//! Prefixes that are reused: what they save, and that they change nothing where nothing may change.

mod golden_support;
mod parity_support;

use gristmill_backend::{Options, open};
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::language;
use gristmill_llm::prefix::{BLOCK, Reuse};
use gristmill_llm::sampling::{Sampler, SamplingParams};
use gristmill_llm::session::{Fed, Session};
use std::ops::ControlFlow;

fn session(keep: usize) -> (Session, Vec<u32>) {
    let file = Gguf::open(parity_support::asset("demo-glm-Q4_0.gguf")).expect("the demo model");
    let opened = open("cpu", &Options::default()).expect("a device");
    let engine = Engine::load(&file, opened, Settings::default(), &|_| ()).expect("an engine");
    let tokenizer = language::tokenizer(file.metadata()).expect("a tokenizer");
    let story =
        "Once upon a time there was a green frog who asked: what is 17 plus 25? The capital of Japan is Tokyo. ";
    (Session::with_prefixes(engine, keep), tokenizer.encode(&story.repeat(60), false, false))
}

fn feed(session: &mut Session, prompt: &[u32], reuse: Reuse) -> Fed {
    session.feed_with(prompt, reuse, &mut |_, _| ControlFlow::Continue(())).expect("fed")
}

fn answer(session: &mut Session, tokens: usize) -> Vec<u32> {
    let sampler = Sampler::new(SamplingParams { temperature: 1.5, seed: 7, ..SamplingParams::default() }).unwrap();
    let mut out = Vec::new();
    let each = &mut |token| {
        out.push(token);
        ControlFlow::Continue(())
    };
    session.generate(&sampler, tokens, &|_| false, each).expect("an answer");
    out
}

#[test]
fn an_exact_prefix_changes_no_bit() {
    let (mut session, text) = session(64 << 20);
    for len in [20, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 600, 1200] {
        let prompt = &text[..len];
        // A prompt of other tokens in between, so that rows must come back from the host.
        let other: Vec<u32> = prompt.iter().rev().copied().collect();
        session.clear();
        let (mut scratch, _) = self::session(0);
        let fed = feed(&mut scratch, prompt, Reuse::Exact);
        assert_eq!(fed.reused, 0);
        let logits = scratch.logits().to_vec();
        let expected = answer(&mut scratch, 30);
        for begun in [0, BLOCK, len / 2, len] {
            feed(&mut session, &other, Reuse::Exact);
            feed(&mut session, &text[..begun.max(1)], Reuse::Exact);
            answer(&mut session, 40);
            let fed = feed(&mut session, prompt, Reuse::Exact);
            assert!(fed.reused >= begun.saturating_sub(1) / BLOCK * BLOCK, "{len} after {begun}: {fed:?}");
            assert_eq!(session.logits(), logits, "{len} after {begun}: {fed:?}");
            assert_eq!(answer(&mut session, 30), expected, "{len} after {begun}");
        }
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
