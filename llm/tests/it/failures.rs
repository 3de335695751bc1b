//! After device failures and non-finite values, no state remains that affects a later conversation.

use crate::common::forward;
use crate::conversation_support::apart;
use crate::failing_support::{Calls, failing};
use crate::golden_support::{Fixture, Tiny};
use crate::parity_support::{asset, file_of};
use gristmill_encodings::F32;
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::Logits;
use gristmill_llm::engine::{
    self, CompiledModel, DecodeRow, Engine, Settings, Step, TokenRun, TokenSource, Weights,
    WholePool,
};
use gristmill_llm::generation::{Finish, Generation};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::perplexity::perplexity;
use gristmill_llm::sampling::{Sampler, SamplingError, SamplingParams};
use gristmill_llm::sched::{Batcher, Error, Generated, Reuse, SequenceOptions, generate};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Returns a tiny model of 64 tokens, optionally with one token's embedding filled with a number.
fn tiny(poisoned: Option<(u32, f64)>) -> Gguf {
    let fixture = Fixture::new(Tiny::A, true);
    if let Some((token, number)) = poisoned {
        let mut values = fixture.weight("token_embd.weight");
        values[64 * token as usize..64 * (token as usize + 1)].fill(number);
        fixture.replace("token_embd.weight", values);
    }
    file_of(&fixture, &F32)
}

fn settings() -> Settings {
    Settings {
        context: Some(1024),
        cache: CacheType::F16,
        chunk: 64,
        ..Settings::default()
    }
}

fn engine(file: &Gguf, overlaps: bool) -> (Engine, Arc<Calls>) {
    engine_with(file, overlaps, settings())
}

fn engine_with(file: &Gguf, overlaps: bool, settings: Settings) -> (Engine, Arc<Calls>) {
    let (opened, calls) = failing("cpu", true, overlaps);
    (
        Engine::load(file, opened, settings, &|_| ()).expect("a model"),
        calls,
    )
}

/// Returns `len` tokens, none of them 7.
fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len)
        .map(|i| (i * (2 * seed + 3) + seed) % 63)
        .map(|token| if token < 7 { token } else { token + 1 })
        .collect()
}

/// Returns the tokens of an answer. If the embedding of token 7 is not finite, the answer
/// does not contain it.
fn answer(batcher: &mut Batcher, prompt: &[u32], tokens: usize) -> Result<Vec<u32>, Error> {
    answer_with(batcher, prompt, tokens, Reuse::Exact)
}

/// Returns an [`answer`] with the given reuse mode; with [`Reuse::Any`] pages may be read without a
/// block table.
fn answer_with(
    batcher: &mut Batcher,
    prompt: &[u32],
    tokens: usize,
    reuse: Reuse,
) -> Result<Vec<u32>, Error> {
    let mut out = Vec::new();
    let each = &mut |token| {
        out.push(token);
        ControlFlow::Continue(())
    };
    generated(
        batcher,
        prompt,
        tokens,
        reuse,
        &mut |_, _| ControlFlow::Continue(()),
        each,
    )?;
    Ok(out)
}

fn generated(
    batcher: &mut Batcher,
    prompt: &[u32],
    tokens: usize,
    reuse: Reuse,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    each: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, Error> {
    let params = SamplingParams {
        temperature: 1.5,
        top_k: 12,
        seed: 3,
        ..SamplingParams::default()
    };
    let generation = Generation::new(Sampler::new(params)?, tokens, |token| token == 7);
    let options = SequenceOptions {
        reuse,
        batch_invariant: false,
        ..SequenceOptions::default()
    };
    generate(batcher, prompt, options, generation, progress, each)
}

/// A conversation in which rows are computed, cached, reused and cleared.
fn conversation(batcher: &mut Batcher) -> Result<Vec<u32>, Error> {
    let (first, other) = (prompt(1, 100), prompt(2, 75));
    let mut out = answer(batcher, &first, 5)?;
    out.extend(answer(batcher, &other, 4)?);
    out.extend(answer(batcher, &[&first[..], &[9, 8]].concat(), 5)?);
    Ok(out)
}

#[test]
fn a_failure_of_any_call_leaves_the_batcher_as_it_was() {
    for overlaps in [false, true] {
        let (engine, calls) = engine(&tiny(None), overlaps);
        let mut batcher = Batcher::new(engine);
        let want = conversation(&mut batcher).expect("nothing fails");
        assert!(want.len() > 8, "{want:?}");
        for n in 1.. {
            batcher.reset();
            calls.fail(n);
            let outcome = conversation(&mut batcher);
            if calls.made() < n {
                assert!(n > 50, "{n} calls are a short conversation");
                break;
            }
            assert!(outcome.is_err(), "call {n} failed and nobody said so");
            assert_eq!(
                calls.running(),
                0,
                "call {n}: a step runs behind the caller's back"
            );
            calls.fail(0);
            assert_eq!(
                conversation(&mut batcher).expect("nothing fails"),
                want,
                "after call {n} failed, {overlaps}"
            );
        }
    }
}

#[test]
fn an_engine_that_failed_has_waited_for_all_it_started() {
    let (mut engine, calls) = engine(&tiny(None), true);
    let tokens = |engine: &mut Engine| -> Result<Vec<Option<u32>>, engine::Error> {
        let pool = WholePool::new(engine);
        let run = TokenRun {
            tokens: &prompt(1, 9),
            position: 0,
            pages: pool.pages(),
            contiguous: true,
        };
        engine.logits(run, Logits::Last)?;
        let start = |engine: &mut Engine, token, position| {
            let rows: [DecodeRow; 1] = [pool.row(token, position)];
            engine.start(&Step {
                rows: &rows,
                contiguous: true,
                ..Step::default()
            })
        };
        let mut tokens = vec![Some(5)];
        let mut ended = (|| {
            start(engine, TokenSource::Token(5), 9)?;
            for position in 10..16 {
                let started = start(engine, TokenSource::Row(0), position)?;
                tokens.extend(engine.wait()?.chosen);
                if !started {
                    let last = tokens.last().copied().flatten().expect("a token");
                    start(engine, TokenSource::Token(last), position)?;
                }
            }
            Ok(())
        })();
        // The step in flight ends even after a failure.
        let finished = engine.finish();
        if ended.is_ok() {
            ended = finished;
        }
        ended.map(|()| tokens)
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
        assert!(
            matches!(engine.wait(), Err(engine::Error::NotInFlight)),
            "call {n}"
        );
        assert_eq!(
            tokens(&mut engine).expect("nothing fails"),
            want,
            "after call {n} failed"
        );
    }
}

#[test]
fn rows_that_are_no_numbers_do_not_reach_another_conversation() {
    for number in [f64::NAN, f64::INFINITY] {
        let file = tiny(Some((7, number)));
        for (overlaps, reuse) in [
            (false, Reuse::Exact),
            (true, Reuse::Exact),
            (false, Reuse::Any),
            (true, Reuse::Any),
        ] {
            let short = prompt(3, 70);
            let want = answer_with(
                &mut Batcher::new(engine(&file, overlaps).0),
                &short,
                20,
                reuse,
            )
            .expect("numbers");
            let mut batcher = Batcher::new(engine(&file, overlaps).0);
            // At the end of a prompt, inside it, and in one that is cancelled before
            // its logits are read.
            for (len, at) in [(80, 79), (80, 71), (200, 75)] {
                let mut bad = prompt(4, len);
                bad[at] = 7;
                let error = answer_with(&mut batcher, &bad, 3, reuse).expect_err("not a number");
                assert!(
                    matches!(error, Error::Sampling(SamplingError::BadLogit { .. })),
                    "{error}"
                );
                assert!(error.hint().is_some());
                assert_eq!(
                    answer_with(&mut batcher, &short, 20, reuse).expect("numbers"),
                    want,
                    "{number} at {at} of {len}"
                );
            }
            let mut long = prompt(5, 700);
            long[90] = 7;
            for chunks in [2, 3, 5] {
                let mut chunk = 0;
                let mut progress = |_, _| {
                    chunk += 1;
                    if chunk > chunks {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                };
                let each = &mut |_| panic!("no token is chosen");
                let broken = generated(&mut batcher, &long, 3, reuse, &mut progress, each)
                    .expect("broken off");
                assert!(!broken.prefill.complete && broken.finish == Finish::Stopped);
                assert_eq!(
                    answer_with(&mut batcher, &short, 20, reuse).expect("numbers"),
                    want,
                    "{number} in {chunks} chunks"
                );
            }
            assert_eq!(
                answer_with(&mut batcher, &short, 20, reuse).expect("numbers"),
                want,
                "{number}"
            );
        }
    }
}

/// Contiguous steps multiply rows past the end of a sequence by 0: pages of cancelled or borrowed
/// runs must not leave NaN or infinity there.
#[test]
fn pages_of_what_was_broken_off_or_run_apart_do_not_reach_their_neighbours() {
    for number in [f64::NAN, f64::INFINITY] {
        let file = tiny(Some((7, number)));
        for (overlaps, reuse) in [
            (false, Reuse::Exact),
            (true, Reuse::Exact),
            (false, Reuse::Any),
            (true, Reuse::Any),
        ] {
            let short = prompt(3, 70);
            let bad = [&[7][..], &prompt(5, 999)].concat();
            let want = answer_with(
                &mut Batcher::new(engine(&file, overlaps).0),
                &short,
                20,
                reuse,
            )
            .expect("numbers");
            // The next pages taken are those of the borrowed run.
            let mut batcher = Batcher::new(engine(&file, overlaps).0);
            apart(&mut batcher, &bad[..700], 64, &mut |engine, run| {
                let logits = engine.logits(run, Logits::Last).expect("logits");
                assert!(!logits[0].is_finite());
            });
            assert_eq!(
                answer_with(&mut batcher, &short, 20, reuse).expect("numbers"),
                want,
                "{number}, {overlaps}"
            );
            // Cancelled prompts and others cycle through the pool.
            let settings = Settings {
                contexts: 3,
                ..settings()
            };
            let mut batcher = Batcher::new(engine_with(&file, overlaps, settings).0);
            let mut scratch = Batcher::new(engine(&file, overlaps).0);
            assert_eq!(batcher.engine().cache().pages(), 48);
            for nth in 0..40u32 {
                let mut chunks = 0;
                let mut progress = |_, _| {
                    chunks += 1;
                    if chunks > 3 + nth % 9 {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                };
                let bad = [&[7][..], &prompt(nth, 1000)].concat();
                let none = &mut |_| panic!("no token is chosen");
                let broken = generated(&mut batcher, &bad, 3, reuse, &mut progress, none)
                    .expect("broken off");
                assert!(!broken.prefill.complete);
                let good = prompt(nth + 50, 30 + nth * 37 % 400);
                scratch.reset();
                let want = answer_with(&mut scratch, &good, 12, reuse).expect("numbers");
                let found = answer_with(&mut batcher, &good, 12, reuse).unwrap_or_else(|error| {
                    panic!("{number}, {overlaps}, {reuse:?}: {nth}: {error}")
                });
                assert_eq!(found, want, "{number}, {overlaps}, {reuse:?}: {nth}");
            }
        }
    }
}

#[test]
fn numbers_that_were_none_once_are_computed_again() {
    let long = prompt(4, 200);
    for overlaps in [false, true] {
        let (engine, calls) = engine(&tiny(None), overlaps);
        let mut batcher = Batcher::new(engine);
        let want = conversation(&mut batcher).expect("numbers");
        let again = answer(&mut batcher, &long, 4).expect("numbers");
        let mut errors = 0;
        for n in 1.. {
            batcher.reset();
            calls.garble(n);
            let outcome = conversation(&mut batcher);
            if calls.garbles() {
                calls.garble(0);
                break;
            }
            // The corrupted copy may be a page of the host KV cache: then the answer that needs it
            // fails, and the next one does not.
            let outcome = outcome.and_then(|_| conversation(&mut batcher));
            if let Err(error) = outcome {
                assert!(
                    matches!(error, Error::Sampling(SamplingError::BadLogit { .. })),
                    "{error}"
                );
                errors += 1;
            }
            assert_eq!(
                conversation(&mut batcher).expect("numbers"),
                want,
                "after copy {n}, {overlaps}"
            );
            assert_eq!(
                answer(&mut batcher, &long, 4).expect("numbers"),
                again,
                "after copy {n}, {overlaps}"
            );
        }
        assert!(errors > 1, "{errors}");
        // The same prompt again at once.
        batcher.reset();
        calls.garble(1);
        answer(&mut batcher, &long, 4).expect_err("not a number");
        assert_eq!(
            answer(&mut batcher, &long, 4).expect("numbers"),
            again,
            "{overlaps}"
        );
    }
}

#[test]
fn perplexity_of_nan_logits_is_an_error() {
    let (mut engine, _) = engine(&tiny(Some((7, f64::NAN))), false);
    let mut tokens = prompt(1, 40);
    perplexity(&mut engine, &tokens, None, 64, &mut |_, _, _| ()).expect("numbers");
    tokens[20] = 7;
    let error =
        perplexity(&mut engine, &tokens, None, 64, &mut |_, _, _| ()).expect_err("not a number");
    // Earlier tokens of the same chunk read its row with the factor 0.
    assert!(
        matches!(
            error,
            engine::Error::BadLogit {
                position: 0..=20,
                token: 0,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.hint().is_some());
}

/// Returns the demo model with the first weight of an f32 tensor replaced.
fn demo_with(tensor: &str, number: f32) -> Gguf {
    let path = asset("demo-glm-Q4_0.gguf");
    let mut bytes = std::fs::read(&path).expect("the demo model");
    let at = Gguf::open(&path)
        .expect("the demo model")
        .tensor(tensor)
        .expect("there is one")
        .offset as usize;
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    Gguf::from_bytes(bytes).expect("the demo model")
}

/// Quantised activations (int8) do not hide non-finite values.
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
                let settings = Settings {
                    context: Some(96),
                    chunk: 8,
                    ..Settings::default()
                };
                let engine = Engine::load(&file, opened, settings, &|_| ()).expect("a model");
                let mut batcher = Batcher::new(engine);
                for len in [1, 20] {
                    let error = answer(&mut batcher, &prompt(1, len), 3);
                    let told =
                        matches!(error, Err(Error::Sampling(SamplingError::BadLogit { .. })));
                    assert!(
                        told,
                        "{tensor} {number}, exact: {exact}, {len} tokens: {error:?}"
                    );
                }
            }
        }
    }
}

/// The memory estimated before loading equals the allocated memory, with sampling on the device
/// or on the host.
#[test]
fn memory_is_counted_before_it_is_taken() {
    let file = Gguf::open(asset("demo-glm-Q4_0.gguf")).expect("the demo model");
    for (context, chunk, overlaps) in [(96, 8, false), (1500, 512, true)] {
        let (opened, calls) = failing("cpu", false, overlaps);
        let settings = Settings {
            context: Some(context),
            chunk,
            ..Settings::default()
        };
        let none = Weights::default();
        let compiled =
            CompiledModel::new(&file, opened, settings, &none, &|_| ()).expect("compiled");
        assert_eq!(
            calls.allocated(),
            0,
            "compiling takes no memory of the device"
        );
        let counted = compiled.memory(&none) as f64;
        let mut engine = compiled.load(none, &|_| ()).expect("loaded");
        let allocated = calls.allocated() as f64;
        println!(
            "context {context}, chunks of {chunk}: {counted} bytes counted, {allocated} allocated"
        );
        assert!(
            (allocated / counted - 1.0).abs() < 0.02,
            "{counted} bytes counted, {allocated} allocated"
        );
        // Steps allocate no more.
        forward(&mut engine, &prompt(1, 80), 0, false);
        forward(&mut engine, &[1], 80, false);
        assert_eq!(calls.allocated() as f64, allocated);
        // A step that needs more intermediates replaces the arena, and earlier
        // steps are captured again.
        let before = calls.captured();
        let want = forward(&mut engine, &[5], 80, false);
        forward(&mut engine, &prompt(1, 80), 0, true);
        if calls.allocated() as f64 > allocated {
            assert!(
                calls.captured() < before,
                "{} captured steps keep their arena",
                calls.captured()
            );
        }
        assert_eq!(forward(&mut engine, &[5], 80, false), want);
    }
}
