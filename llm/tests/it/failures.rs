//! What a device's failures, and numbers that are none, leave behind: nothing that a later conversation could meet.

use crate::failing_support::{Calls, failing};
use crate::golden_support::{Fixture, Tiny};
use crate::parity_support::{asset, file_of};
use gristmill_encodings::F32;
use gristmill_llm::engine::{self, Compiled, Draw, Engine, Settings, Weights};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::perplexity::perplexity;
use gristmill_llm::prefix::Reuse;
use gristmill_llm::sampling::{Sampler, SamplingError, SamplingParams};
use gristmill_llm::session::{Error, Session};
use gristmill_uop::Scalar;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A tiny model of 64 tokens, of which one's embedding may be this number throughout.
fn tiny(poisoned: Option<(u32, f64)>) -> Gguf {
    let fixture = Fixture::new(Tiny::A, true);
    if let Some((token, number)) = poisoned {
        let mut values = fixture.weight("token_embd.weight");
        values[64 * token as usize..64 * (token as usize + 1)].fill(number);
        fixture.replace("token_embd.weight", values);
    }
    file_of(&fixture, &F32)
}

fn engine(file: &Gguf, overlaps: bool) -> (Engine, Arc<Calls>) {
    let (opened, calls) = failing("cpu", true, overlaps);
    let settings = Settings {
        context: Some(1024),
        cache: Scalar::F16,
        chunk: 64,
        long: None,
        parallel: None,
        mixed: true,
        depths: None,
    };
    (Engine::load(file, opened, settings, &|_| ()).expect("a model"), calls)
}

/// `len` tokens, none of them 7.
fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * (2 * seed + 3) + seed) % 63).map(|token| if token < 7 { token } else { token + 1 }).collect()
}

/// The tokens of an answer. Token 7, where a model has no number for it, is not among them.
fn answer(session: &mut Session, prompt: &[u32], tokens: usize) -> Result<Vec<u32>, Error> {
    session.feed_with(prompt, Reuse::Exact, &mut |_, _| ControlFlow::Continue(()))?;
    let params = SamplingParams { temperature: 1.5, top_k: 12, seed: 3, ..SamplingParams::default() };
    let mut out = Vec::new();
    session.generate(&Sampler::new(params)?, tokens, &|token| token == 7, &mut |token| {
        out.push(token);
        ControlFlow::Continue(())
    })?;
    Ok(out)
}

/// A conversation in which rows are computed, kept, found again and cleared.
fn conversation(session: &mut Session) -> Result<Vec<u32>, Error> {
    let (first, other) = (prompt(1, 100), prompt(2, 75));
    let mut out = answer(session, &first, 5)?;
    out.extend(answer(session, &other, 4)?);
    out.extend(answer(session, &[&first[..], &[9, 8]].concat(), 5)?);
    Ok(out)
}

#[test]
fn a_failure_of_any_call_leaves_the_session_as_it_was() {
    for overlaps in [false, true] {
        let (engine, calls) = engine(&tiny(None), overlaps);
        let mut session = Session::with_prefixes(engine, 1 << 20);
        let want = conversation(&mut session).expect("nothing fails");
        assert!(want.len() > 8, "{want:?}");
        for n in 1.. {
            session.reset();
            calls.fail(n);
            let outcome = conversation(&mut session);
            if calls.made() < n {
                assert!(n > 50, "{n} calls are a short conversation");
                break;
            }
            assert!(outcome.is_err(), "call {n} failed and nobody said so");
            assert_eq!(calls.running(), 0, "call {n}: a step runs behind the caller's back");
            calls.fail(0);
            assert_eq!(conversation(&mut session).expect("nothing fails"), want, "after call {n} failed, {overlaps}");
        }
    }
}

#[test]
fn an_engine_that_failed_has_waited_for_all_it_started() {
    let (mut engine, calls) = engine(&tiny(None), true);
    let tokens = |engine: &mut Engine| -> Result<Vec<u32>, engine::Error> {
        engine.forward(&prompt(1, 9), 0, false)?;
        engine.decode(5, 9, 8, &Draw::greedy(), true)?;
        let tokens = (0..6).map(|_| Ok(engine.next_token()?.expect("a token"))).collect();
        engine.finish()?;
        tokens
    };
    let want = tokens(&mut engine).expect("nothing fails");
    for n in 1.. {
        calls.fail(n);
        let outcome = tokens(&mut engine);
        if calls.made() < n {
            break;
        }
        assert!(outcome.is_err(), "call {n}");
        assert_eq!(calls.running(), 0, "call {n}");
        calls.fail(0);
        assert!(matches!(engine.next_token(), Err(engine::Error::NoGeneration)), "call {n}");
        assert_eq!(tokens(&mut engine).expect("nothing fails"), want, "after call {n} failed");
    }
}

#[test]
fn rows_that_are_no_numbers_do_not_reach_another_conversation() {
    for number in [f64::NAN, f64::INFINITY] {
        let file = tiny(Some((7, number)));
        for overlaps in [false, true] {
            let short = prompt(3, 70);
            let want = answer(&mut Session::new(engine(&file, overlaps).0), &short, 20).expect("numbers");
            let mut session = Session::with_prefixes(engine(&file, overlaps).0, 1 << 20);
            // At the end of a prompt, in it, and in one that is broken off before anybody sees its logits.
            for (len, at) in [(80, 79), (80, 71), (200, 75)] {
                let mut bad = prompt(4, len);
                bad[at] = 7;
                let error = answer(&mut session, &bad, 3).expect_err("not a number");
                assert!(matches!(error, Error::Sampling(SamplingError::BadLogit { .. })), "{error}");
                assert!(error.hint().is_some());
                assert_eq!(answer(&mut session, &short, 20).expect("numbers"), want, "{number} at {at} of {len}");
            }
            let mut long = prompt(5, 700);
            long[90] = 7;
            let mut pieces = 0;
            let broken = session.feed_with(&long, Reuse::Exact, &mut |_, _| {
                pieces += 1;
                if pieces > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(!broken.expect("broken off").complete);
            assert_eq!(answer(&mut session, &short, 20).expect("numbers"), want, "{number}");
        }
    }
}

#[test]
fn numbers_that_were_none_once_are_computed_again() {
    let long = prompt(4, 200);
    for overlaps in [false, true] {
        let (engine, calls) = engine(&tiny(None), overlaps);
        let mut session = Session::with_prefixes(engine, 1 << 20);
        let want = conversation(&mut session).expect("numbers");
        let again = answer(&mut session, &long, 4).expect("numbers");
        let mut errors = 0;
        for n in 1.. {
            session.reset();
            calls.garble(n);
            let outcome = conversation(&mut session);
            if calls.garbles() {
                calls.garble(0);
                break;
            }
            // Rows that are kept on the host may be what is spoilt: then an answer that needs them says so, and the next does not.
            let outcome = outcome.and_then(|_| conversation(&mut session));
            if let Err(error) = outcome {
                assert!(matches!(error, Error::Sampling(SamplingError::BadLogit { .. })), "{error}");
                errors += 1;
            }
            assert_eq!(conversation(&mut session).expect("numbers"), want, "after copy {n}, {overlaps}");
            assert_eq!(answer(&mut session, &long, 4).expect("numbers"), again, "after copy {n}, {overlaps}");
        }
        assert!(errors > 1, "{errors}");
        // The same prompt at once.
        session.reset();
        calls.garble(1);
        answer(&mut session, &long, 4).expect_err("not a number");
        assert_eq!(answer(&mut session, &long, 4).expect("numbers"), again, "{overlaps}");
    }
}

#[test]
fn perplexity_of_what_is_no_number_is_an_error() {
    let (mut engine, _) = engine(&tiny(Some((7, f64::NAN))), false);
    let mut tokens = prompt(1, 40);
    perplexity(&mut engine, &tokens, None, 64, &mut |_, _, _| ()).expect("numbers");
    tokens[20] = 7;
    let error = perplexity(&mut engine, &tokens, None, 64, &mut |_, _, _| ()).expect_err("not a number");
    // Those before it in its step of a chunk meet its row, with the factor 0.
    assert!(matches!(error, engine::Error::BadLogit { position: 0..=20, token: 0, .. }), "{error}");
    assert!(error.hint().is_some());
}

/// The demo model with the first weight of a tensor, of f32, replaced.
fn demo_with(tensor: &str, number: f32) -> Gguf {
    let path = asset("demo-glm-Q4_0.gguf");
    let mut bytes = std::fs::read(&path).expect("the demo model");
    let at = Gguf::open(&path).expect("the demo model").tensor(tensor).expect("there is one").offset as usize;
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    Gguf::from_bytes(bytes).expect("the demo model")
}

/// Activations that are encoded in eight bits do not hide what is no number.
#[test]
fn a_model_that_computes_no_numbers_is_an_error() {
    for exact in [true, false] {
        for (tensor, number) in [
            ("output_norm.weight", f32::NAN),
            ("output_norm.weight", f32::INFINITY),
            ("blk.0.attn_norm.weight", f32::NAN),
            ("blk.1.ffn_norm.weight", f32::NAN),
            ("blk.1.ffn_norm.weight", f32::NEG_INFINITY),
        ] {
            let file = demo_with(tensor, number);
            for overlaps in [false, true] {
                let (opened, _) = failing("cpu", exact, overlaps);
                let settings = Settings { context: Some(96), chunk: 8, ..Settings::default() };
                let engine = Engine::load(&file, opened, settings, &|_| ()).expect("a model");
                let mut session = Session::new(engine);
                for len in [1, 20] {
                    let error = answer(&mut session, &prompt(1, len), 3);
                    let told = matches!(error, Err(Error::Sampling(SamplingError::BadLogit { .. })));
                    assert!(told, "{tensor} {number}, exact: {exact}, {len} tokens: {error:?}");
                }
            }
        }
    }
}

/// What is counted before loading is what loading allocates, on devices that choose on their own or do not.
#[test]
fn memory_is_counted_before_it_is_taken() {
    let file = Gguf::open(asset("demo-glm-Q4_0.gguf")).expect("the demo model");
    for (context, chunk, overlaps) in [(96, 8, false), (1500, 512, true)] {
        let (opened, calls) = failing("cpu", false, overlaps);
        let settings = Settings { context: Some(context), chunk, ..Settings::default() };
        let none = Weights::default();
        let compiled = Compiled::new(&file, opened, settings, &none, &|_| ()).expect("compiled");
        assert_eq!(calls.allocated(), 0, "compiling takes no memory of the device");
        let counted = compiled.memory(&none) as f64;
        let mut engine = compiled.load(none, &|_| ()).expect("loaded");
        let allocated = calls.allocated() as f64;
        println!("context {context}, chunks of {chunk}: {counted} bytes counted, {allocated} allocated");
        assert!((allocated / counted - 1.0).abs() < 0.02, "{counted} bytes counted, {allocated} allocated");
        // Sessions take no more.
        engine.forward(&prompt(1, 80), 0, false).expect("logits");
        engine.forward(&[1], 80, false).expect("logits");
        assert_eq!(calls.allocated() as f64, allocated);
        // What needs more intermediates than any step before takes their place, and those steps are captured again.
        let before = calls.captured();
        let want = engine.forward(&[5], 80, false).expect("logits").to_vec();
        engine.forward(&prompt(1, 80), 0, true).expect("logits");
        if calls.allocated() as f64 > allocated {
            assert!(calls.captured() < before, "{} captured steps keep their arena", calls.captured());
        }
        assert_eq!(engine.forward(&[5], 80, false).expect("logits"), want);
    }
}
