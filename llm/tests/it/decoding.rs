//! Generation with tokens that stay on the device equals sampling on the host, with
//! asynchronous scheduling or without.

use crate::common::forward;
use crate::failing_support::around;
use crate::late_support::late;
use crate::parity_support;
use crate::parity_support::tables::argmax;
use gristmill_backend::{Opened, Options, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::engine::{DecodeRow, Engine, Error, Settings, Step, TokenSource, WholePool};
use gristmill_llm::generation::{Finish, Generation};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::{RowSampling, Sampler, SamplingParams};
use gristmill_llm::sched::{Batcher, PrefillStats, Reuse, SequenceOptions, generate};
use std::ops::ControlFlow;

const PROMPT: &[u32] = &[3, 50, 7, 120];

fn engine(device: &str) -> Engine {
    engine_of(opened(device), None)
}

/// Opens a device with asynchronous steps; `late` runs them as late as possible.
fn opened(device: &str) -> Opened {
    if device == "late" {
        return late();
    }
    let options = Options {
        threads: Some(2),
        quick: true,
        ..Options::default()
    };
    around(open(device, &options).expect("a device"), true).0
}

fn engine_of(opened: Opened, depths: Option<Vec<usize>>) -> Engine {
    let file = Gguf::open(parity_support::asset("demo-glm-Q4_0.gguf")).expect("the demo model");
    let settings = Settings {
        context: Some(96),
        cache: CacheType::F16,
        chunk: 8,
        depths,
        ..Settings::default()
    };
    Engine::load(&file, opened, settings, &|_| ()).expect("a model")
}

/// Generates tokens after the prompt with sampling on the host, one decode step after the other.
fn by_host(engine: &mut Engine, sampler: &mut Sampler, n: usize) -> Vec<u32> {
    let mut logits = forward(engine, PROMPT, 0, false);
    let mut tokens = Vec::new();
    for i in 0..n {
        let history = [PROMPT, &tokens].concat();
        tokens.push(sampler.sample(&logits, &history).expect("a token"));
        logits = forward(engine, &tokens[i..], PROMPT.len() + i, false);
    }
    tokens
}

/// Starts a decode step of the only sequence. Returns whether it was started.
fn start(
    engine: &mut Engine,
    pool: &WholePool,
    token: TokenSource,
    position: usize,
    draws: RowSampling,
) -> Result<bool, Error> {
    let rows = [DecodeRow {
        sampling: draws,
        ..pool.row(token, position)
    }];
    engine.start(&Step {
        rows: &rows,
        contiguous: true,
        ..Step::default()
    })
}

/// Generates tokens with sampling on the device, except for the first. Also returns how many steps
/// were started before the previous token was read.
fn by_device(
    engine: &mut Engine,
    sampler: &mut Sampler,
    n: usize,
    asynchronous: bool,
) -> (Vec<u32>, usize) {
    let logits = forward(engine, PROMPT, 0, false);
    let mut tokens = vec![sampler.sample(&logits, PROMPT).expect("a token")];
    let draws = RowSampling::new(sampler).expect("a choice for a device");
    let (pool, mut early) = (WholePool::new(engine), 0);
    assert!(
        start(
            engine,
            &pool,
            TokenSource::Token(tokens[0]),
            PROMPT.len(),
            draws
        )
        .expect("started")
    );
    for position in PROMPT.len() + 1..PROMPT.len() + n {
        // The last step in flight is discarded.
        let started = asynchronous
            && start(engine, &pool, TokenSource::Row(0), position, draws).expect("started");
        early += usize::from(started);
        tokens.push(engine.wait().expect("a step").chosen[0].expect("a token"));
        if !started {
            let last = TokenSource::Token(*tokens.last().expect("one"));
            assert!(start(engine, &pool, last, position, draws).expect("started"));
        }
    }
    engine.finish().expect("ended");
    (tokens, early)
}

#[test]
fn the_device_chooses_what_the_host_would() {
    for (device, n) in [("interp", 4), ("cpu", 40), ("late", 40)] {
        let mut engine = engine(device);
        let drawn = SamplingParams {
            seed: 5,
            ..SamplingParams::default()
        };
        // All tokens are candidates, so the device reads every logit.
        let all = SamplingParams {
            top_k: 0,
            top_p: 1.0,
            temperature: 1.5,
            ..drawn.clone()
        };
        let nucleus = SamplingParams {
            top_p: 0.9,
            ..all.clone()
        };
        let many = SamplingParams {
            top_k: 100,
            ..all.clone()
        };
        for params in [SamplingParams::greedy(), drawn, all, nucleus, many] {
            let sampler = || Sampler::new(params.clone()).expect("parameters");
            let want = by_host(&mut engine, &mut sampler(), n);
            for asynchronous in [false, true] {
                let (found, early) = by_device(&mut engine, &mut sampler(), n, asynchronous);
                assert_eq!(
                    found, want,
                    "{device}, {params:?}, asynchronous: {asynchronous}"
                );
                assert!(
                    (early > n / 2) == asynchronous,
                    "{device}, {params:?}: {early} of {n} steps"
                );
            }
            // The row written by the surplus step has no effect.
            assert_eq!(
                by_host(&mut engine, &mut sampler(), n),
                want,
                "{device}, {params:?}"
            );
        }
    }
}

#[test]
fn steps_of_one_depth_go_on_with_those_of_the_next() {
    let greedy = || Sampler::new(SamplingParams::greedy()).expect("parameters");
    let (want, _) = by_device(&mut engine("cpu"), &mut greedy(), 40, false);
    let mut divided = engine_of(opened("cpu"), Some(vec![16, 32]));
    let kernels = |e: &Engine, position| {
        e.step_launches(1, position)
            .iter()
            .map(|l| l.0.function.name.clone())
            .collect()
    };
    let names: Vec<Vec<String>> = [15, 16, 32].iter().map(|&p| kernels(&divided, p)).collect();
    assert!(
        names[0][1].ends_with(".16")
            && names[1][1].ends_with(".32")
            && names[2][1].ends_with(".one"),
        "{names:?}"
    );
    for asynchronous in [false, true] {
        let (found, _) = by_device(&mut divided, &mut greedy(), 40, asynchronous);
        assert_eq!(found, want, "asynchronous: {asynchronous}");
    }
    assert_eq!(by_host(&mut divided, &mut greedy(), 40), want);
}

#[test]
fn a_step_is_waited_for_once_and_stays_in_the_context() {
    let mut e = engine("cpu");
    let pool = WholePool::new(&e);
    let greedy = RowSampling::greedy();
    assert!(matches!(e.wait(), Err(Error::NotInFlight)));
    assert!(matches!(
        start(&mut e, &pool, TokenSource::Token(1), 96, greedy),
        Err(Error::Full(96))
    ));
    assert!(matches!(
        start(&mut e, &pool, TokenSource::Token(1 << 30), 0, greedy),
        Err(Error::Token { .. })
    ));
    assert!(!e.is_in_flight());
    let mut last = Vec::new();
    for position in 93..96 {
        let token = last.last().copied().unwrap_or(1);
        assert!(
            start(&mut e, &pool, TokenSource::Token(token), position, greedy).expect("started")
                && e.is_in_flight()
        );
        last.push(e.wait().expect("a step").chosen[0].expect("a token"));
    }
    assert!(matches!(e.wait(), Err(Error::NotInFlight)));
    // Runs the first token again in a step of its own, which ends the step in flight.
    assert!(start(&mut e, &pool, TokenSource::Token(5), 94, greedy).expect("started"));
    let logits = forward(&mut e, &[1], 93, false);
    assert_eq!(argmax(&logits), last[0] as usize);
    assert!(
        matches!(e.wait(), Err(Error::NotInFlight)),
        "another step ends one that is in flight"
    );
}

#[test]
fn a_conversation_goes_on_after_what_the_device_chose() {
    for asynchronous in [false, true] {
        let mut batcher = Batcher::new(engine("cpu")).with_async_scheduling(asynchronous);
        let mut answer =
            |prompt: &[u32], limit: usize, end: Option<u32>| -> (Vec<u32>, Finish, PrefillStats) {
                let mut tokens = Vec::new();
                let sampler = Sampler::new(SamplingParams::greedy()).expect("parameters");
                let generation = Generation::new(sampler, limit, |token| Some(token) == end);
                let mut each = |token| {
                    tokens.push(token);
                    ControlFlow::Continue(())
                };
                let options = SequenceOptions {
                    reuse: Reuse::Any,
                    batch_invariant: false,
                    ..SequenceOptions::default()
                };
                let mut progress = |_, _| ControlFlow::Continue(());
                let done = generate(
                    &mut batcher,
                    prompt,
                    options,
                    generation,
                    &mut progress,
                    &mut each,
                );
                let done = done.expect("an answer");
                assert_eq!(done.tokens, tokens.len());
                (tokens, done.finish, done.prefill)
            };
        let (all, finish, _) = answer(PROMPT, 12, None);
        assert_eq!((all.len(), finish), (12, Finish::Limit));
        let want = by_host(
            &mut engine("cpu"),
            &mut Sampler::new(SamplingParams::greedy()).expect("parameters"),
            12,
        );
        assert_eq!(all, want);
        // The next turn reuses all tokens that were run: all but the last.
        let (_, _, prefill) = answer(&[PROMPT, &all, &[9]].concat(), 1, None);
        assert_eq!(
            prefill.reused,
            PROMPT.len() + 11,
            "asynchronous: {asynchronous}"
        );
        // Ended by a token; then the same text again, sharing its prefix or not.
        let end = all[5];
        let before = all.iter().position(|&t| t == end).expect("one of them");
        for again in [PROMPT.to_vec(), [PROMPT, &all[..3]].concat()] {
            let (some, finish, _) = answer(PROMPT, 12, Some(end));
            assert_eq!((&some[..], finish), (&all[..before], Finish::EndOfText));
            let fed = again.len() - PROMPT.len();
            assert_eq!(answer(&again, 12 - fed, None).0, all[fed..]);
        }
        // Up to the end of the context.
        let (all, finish, _) = answer(PROMPT, 1000, None);
        assert_eq!(
            (all.len(), finish),
            (96 - PROMPT.len() + 1, Finish::ContextFull)
        );
    }
}
