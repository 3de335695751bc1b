//! Generation whose tokens stay on the device gives what the host's choices give, a step ahead or not.

use crate::parity_support;
use gristmill_backend::{Options, open};
use gristmill_llm::arch::Logits;
use gristmill_llm::engine::{Draw, Engine, Error, Settings};
use gristmill_llm::generation::Finish;
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::{Sampler, SamplingParams};
use gristmill_llm::session::Session;
use gristmill_uop::Scalar;
use std::ops::ControlFlow;

const PROMPT: &[u32] = &[3, 50, 7, 120];

fn engine(device: &str) -> Engine {
    engine_of(device, None)
}

fn engine_of(device: &str, depths: Option<Vec<usize>>) -> Engine {
    let file = Gguf::open(parity_support::asset("demo-glm-Q4_0.gguf")).expect("the demo model");
    let opened = open(device, &Options { threads: Some(2), quick: true, ..Options::default() }).expect("a device");
    let settings =
        Settings { context: Some(96), cache: Scalar::F16, chunk: 8, long: None, parallel: None, mixed: true, depths };
    Engine::load(&file, opened, settings, &|_| ()).expect("a model")
}

/// Tokens by the host, one forward step after the other, from the prompt on.
fn by_host(engine: &mut Engine, sampler: &mut Sampler, n: usize) -> Vec<u32> {
    let mut logits = engine.forward(PROMPT, 0, false).expect("logits").to_vec();
    let mut tokens = Vec::new();
    for i in 0..n {
        let history = [PROMPT, &tokens].concat();
        tokens.push(sampler.sample(&logits, &history).expect("a token"));
        logits = engine.forward_with(&tokens[i..], PROMPT.len() + i, Logits::Last).expect("logits").to_vec();
    }
    tokens
}

/// The same, all but the first by the device.
fn by_device(engine: &mut Engine, sampler: &mut Sampler, n: usize, ahead: bool) -> Vec<u32> {
    let logits = engine.forward(PROMPT, 0, false).expect("logits").to_vec();
    let mut tokens = vec![sampler.sample(&logits, PROMPT).expect("a token")];
    // More steps than are asked for: the one that was started ahead is given up.
    let draw = Draw::of(sampler).expect("a choice for a device");
    engine.decode(tokens[0], PROMPT.len(), n + 5, &draw, ahead).expect("started");
    for _ in 1..n {
        tokens.push(engine.next_token().expect("a step").expect("a token"));
    }
    engine.finish().expect("ended");
    tokens
}

#[test]
fn the_device_chooses_what_the_host_would() {
    for (device, n) in [("interp", 4), ("cpu", 40)] {
        let mut engine = engine(device);
        let drawn = SamplingParams { seed: 5, ..SamplingParams::default() };
        // All tokens may come, so that a device looks at each.
        let all = SamplingParams { top_k: 0, top_p: 1.0, temperature: 1.5, ..drawn.clone() };
        for params in [SamplingParams::greedy(), drawn, all] {
            let sampler = || Sampler::new(params.clone()).expect("parameters");
            let want = by_host(&mut engine, &mut sampler(), n);
            for ahead in [false, true] {
                let found = by_device(&mut engine, &mut sampler(), n, ahead);
                assert_eq!(found, want, "{device}, {params:?}, ahead: {ahead}");
            }
            // The row that a step too many has written does not matter.
            assert_eq!(by_host(&mut engine, &mut sampler(), n), want, "{device}, {params:?}");
        }
    }
}

#[test]
fn steps_of_one_depth_go_on_with_those_of_the_next() {
    let greedy = || Sampler::new(SamplingParams::greedy()).expect("parameters");
    let want = by_device(&mut engine("cpu"), &mut greedy(), 40, false);
    let mut divided = engine_of("cpu", Some(vec![16, 32]));
    let kernels =
        |e: &Engine, position| e.step_launches(1, position).iter().map(|l| l.0.function.name.clone()).collect();
    let names: Vec<Vec<String>> = [15, 16, 32].iter().map(|&p| kernels(&divided, p)).collect();
    assert!(names[0][1].ends_with(".16") && names[1][1].ends_with(".32") && names[2][1].ends_with(".one"), "{names:?}");
    for ahead in [false, true] {
        assert_eq!(by_device(&mut divided, &mut greedy(), 40, ahead), want, "ahead: {ahead}");
    }
    assert_eq!(by_host(&mut divided, &mut greedy(), 40), want);
}

#[test]
fn a_generation_ends_where_it_should() {
    let mut e = engine("cpu");
    let draw = Draw::greedy();
    assert!(matches!(e.next_token(), Err(Error::NoGeneration)));
    assert!(matches!(e.decode(1, 90, 7, &draw, true), Err(Error::Full(96))));
    assert!(matches!(e.decode(1 << 30, 0, 1, &draw, true), Err(Error::Token { .. })));
    e.decode(1, 93, 3, &draw, true).expect("started");
    let last: Vec<u32> = (0..3).map(|_| e.next_token().expect("a step").expect("a token")).collect();
    assert!(matches!(e.next_token(), Err(Error::NoGeneration)));
    // The first of them again, by a step of its own.
    let logits = e.forward(&[1], 93, false).expect("logits");
    assert_eq!(parity_support::tables::argmax(logits), last[0] as usize);
    assert!(matches!(e.next_token(), Err(Error::NoGeneration)), "another step ends a generation");
}

#[test]
fn a_session_goes_on_after_what_the_device_chose() {
    let generate = |session: &mut Session, limit: usize, end: Option<u32>| {
        let mut tokens = Vec::new();
        let sampler = Sampler::new(SamplingParams::greedy()).expect("parameters");
        let ends = |token| Some(token) == end;
        let mut each = |token| {
            tokens.push(token);
            ControlFlow::Continue(())
        };
        let done = session.generate(&sampler, limit, &ends, &mut each).expect("an answer");
        (tokens, done.finish)
    };
    let feed = |session: &mut Session, prompt: &[u32]| {
        session.feed(prompt, &mut |_, _| ControlFlow::Continue(())).expect("fed");
    };
    let mut session = Session::new(engine("cpu"));
    feed(&mut session, PROMPT);
    let (all, finish) = generate(&mut session, 12, None);
    assert_eq!((all.len(), finish), (12, Finish::Limit));
    assert_eq!(session.tokens(), [PROMPT, &all[..11]].concat(), "the last token has not been run");
    let want = by_host(&mut engine("cpu"), &mut Sampler::new(SamplingParams::greedy()).expect("parameters"), 12);
    assert_eq!(all, want);
    // Ended by a token; then the same text again, what was fed shared or not.
    let end = all[5];
    let before = all.iter().position(|&t| t == end).expect("one of them");
    for again in [PROMPT.to_vec(), [PROMPT, &all[..3]].concat()] {
        feed(&mut session, PROMPT);
        let (some, finish) = generate(&mut session, 12, Some(end));
        assert_eq!((&some[..], finish), (&all[..before], Finish::EndOfText));
        feed(&mut session, &again);
        let fed = again.len() - PROMPT.len();
        assert_eq!(generate(&mut session, 12 - fed, None).0, all[fed..]);
    }
    // Up to the end of the context.
    feed(&mut session, PROMPT);
    assert_eq!(generate(&mut session, 1000, None).1, Finish::ContextFull);
    assert_eq!(session.tokens().len(), 96);
}
