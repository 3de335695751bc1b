//! Tests that asynchronous scheduling gives the same tokens as synchronous steps, while sequences
//! start and end.

use crate::late_support;
use crate::parity_support::tables::{data, ids};
use gristmill_backend::{Opened, Options, open};
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::generation::{Generation, ModelOutput};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::{Sampler, SamplingParams};
use gristmill_llm::sched::{Batcher, Reuse, SequenceOptions};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Sequences of a step.
const PARALLEL: usize = 4;
/// Enough tokens for more pages than the window pool has, in models with windows.
const CONTEXT: usize = 512;
/// Maximum tokens of an answer.
const ANSWER: usize = 14;

fn batcher(family: &str, quant: &str) -> (Batcher, Vec<u32>) {
    batcher_on(
        open(
            "cpu",
            &Options {
                quick: true,
                ..Options::default()
            },
        )
        .expect("a device"),
        family,
        quant,
    )
}

fn batcher_on(opened: Opened, family: &str, quant: &str) -> (Batcher, Vec<u32>) {
    let file = Gguf::open(data(&format!("families/{family}-{quant}.gguf"))).expect("a GGUF file");
    let settings = Settings {
        context: Some(CONTEXT),
        chunk: 128,
        parallel: PARALLEL,
        ..Settings::default()
    };
    let engine = Engine::load(&file, opened, settings, &|_| ()).expect("a model");
    let tokens = ids(&data(&format!("families/{family}-tokens.txt")));
    (Batcher::new(engine), tokens)
}

/// Generations with different sampling methods; some end at a token that is not predictable.
fn generation(nth: usize) -> Generation<'static> {
    let params = match nth % 3 {
        0 => SamplingParams::greedy(),
        1 => SamplingParams {
            temperature: 1.5,
            ..SamplingParams::default()
        },
        _ => SamplingParams {
            top_k: 60,
            top_p: 1.0,
            min_p: 0.0,
            temperature: 2.0,
            ..SamplingParams::default()
        },
    };
    let sampler = Sampler::new(SamplingParams {
        seed: nth as u64,
        ..params
    })
    .expect("parameters in range");
    Generation::new(sampler, ANSWER - nth % 4, move |token| {
        nth % 2 == 1 && token % 13 == 5
    })
}

/// Returns the answers to prompts added `apart` steps after each other, and the number of tokens
/// chosen by asynchronous steps.
fn answers(batcher: &mut Batcher, prompts: &[&[u32]], apart: usize) -> (Vec<Vec<u32>>, usize) {
    answers_with(batcher, prompts, apart, Reuse::Exact)
}

/// Returns [`answers`] with the given prefix reuse.
fn answers_with(
    batcher: &mut Batcher,
    prompts: &[&[u32]],
    apart: usize,
    reuse: Reuse,
) -> (Vec<Vec<u32>>, usize) {
    let options = SequenceOptions {
        reuse,
        batch_invariant: reuse == Reuse::Exact,
        ..SequenceOptions::default()
    };
    let (context, vocabulary) = (
        batcher.engine().context(),
        batcher.engine().model().vocabulary(),
    );
    let (mut here, mut answers) = (BTreeMap::new(), vec![Vec::new(); prompts.len()]);
    let (mut come, mut step, mut ahead) = (0, 0, 0);
    while come < prompts.len() || !here.is_empty() {
        while come < prompts.len() && step >= come * apart {
            here.insert(
                batcher.add(prompts[come], options).expect("a prompt"),
                (come, generation(come)),
            );
            come += 1;
        }
        let told = {
            let here = RefCell::new(&mut here);
            let mut asking = |sequence, history: &[u32]| {
                here.borrow_mut()
                    .get_mut(&sequence)?
                    .1
                    .row_params(history, vocabulary)
            };
            let mut drawing = |sequence| here.borrow().get(&sequence)?.1.sampling();
            batcher
                .step_with(&mut asking, &mut drawing)
                .expect("a step")
        };
        for of in told {
            let Some((at, generation)) = here.get_mut(&of.sequence) else {
                panic!("{of:?} is nobody's")
            };
            let history = batcher.scheduler().tokens(of.sequence).to_vec();
            let drawn = batcher.drawn(of);
            ahead += usize::from(drawn.is_some());
            let token = drawn
                .or_else(|| generation.choose_from_candidates(batcher.candidates(of)?, &history));
            let given = match token {
                Some(token) => ModelOutput::Token(token),
                None => ModelOutput::Logits(batcher.logits(of).expect("logits")),
            };
            let taken = generation.take(given, &history, context).expect("a token");
            answers[*at].extend(taken.token);
            match taken.finish {
                None => batcher.push(of.sequence, taken.token.expect("a token")),
                Some(_) => {
                    batcher.remove(of.sequence);
                    here.remove(&of.sequence);
                }
            }
        }
        step += 1;
    }
    assert_eq!(batcher.load().pages, 0, "nobody has a page");
    (answers, ahead)
}

fn check(family: &str, quant: &str) {
    let (batcher, tokens) = batcher(family, quant);
    let prompts: Vec<&[u32]> = (0..7).map(|nth| &tokens[nth..40 + 7 * nth]).collect();
    let mut batcher = batcher.with_async_scheduling(false);
    let (wanted, none) = answers(&mut batcher, &prompts, 0);
    assert_eq!(none, 0);
    let mut batcher = batcher.with_async_scheduling(true);
    for apart in [0, 1, 5, 30] {
        let (found, ahead) = answers(&mut batcher, &prompts, apart);
        assert_eq!(found, wanted, "{family}, {apart} steps apart");
        let all: usize = found.iter().map(Vec::len).sum();
        println!("{family}, {apart} steps apart: {ahead} of {all} tokens");
        assert!(
            ahead > all / 3,
            "{family}, {apart} steps apart: {ahead} of {all} tokens"
        );
    }
    // A sequence that is cancelled while a step is in flight leaves its pages,
    // without effect on others.
    let alone = answers(&mut batcher, &prompts[..1], 0).0;
    let gone = batcher
        .add(prompts[3], SequenceOptions::default())
        .expect("a prompt");
    let draws = generation(0).sampling();
    for _ in 0..4 {
        let told = batcher
            .step_with(&mut |_, _| None, &mut |_| draws)
            .expect("a step");
        told.into_iter().for_each(|of| batcher.push(of.sequence, 1));
    }
    batcher.remove(gone);
    assert_eq!(batcher.load().pages, 0, "nobody has a page");
    assert_eq!(answers(&mut batcher, &prompts[..1], 0).0, alone);
}

/// Even if steps run as late as possible, host writes do not affect a step
/// that was already started.
#[test]
fn steps_that_run_late_have_the_same_tokens() {
    for (family, quant) in [
        ("llama", "q4_k_m"),
        ("qwen3moe", "q8_0"),
        ("qwen35", "q8_0"),
    ] {
        let (plain, tokens) = batcher(family, quant);
        let prompts: Vec<&[u32]> = (0..7).map(|nth| &tokens[nth..40 + 7 * nth]).collect();
        let wanted = answers(&mut plain.with_async_scheduling(false), &prompts, 0).0;
        let (mut late, _) = batcher_on(late_support::late(), family, quant);
        for apart in [0, 1, 5] {
            let (found, ahead) = answers(&mut late, &prompts, apart);
            assert_eq!(found, wanted, "{family}, {apart} steps apart");
            assert!(ahead > 20, "{family}, {apart} steps apart: {ahead} tokens");
        }
        // Answers that may depend on others: their steps are mixed batches.
        let (found, _) = answers_with(&mut late, &prompts, 2, Reuse::Any);
        assert!(found.iter().flatten().count() > 20, "{found:?}");
        assert!(
            (late.steps().mixed > 0) == late.engine().supports_mixed_batches(),
            "{:?}",
            late.steps()
        );
    }
}

#[test]
fn llama_is_started_ahead() {
    check("llama", "q4_k_m");
}

#[test]
fn experts_are_started_ahead() {
    check("qwen3moe", "q8_0");
}

#[test]
fn latents_are_started_ahead() {
    check("deepseek2", "q8_0");
}

#[test]
fn states_are_started_ahead() {
    check("qwen35", "q8_0");
}

#[test]
fn windows_are_started_ahead() {
    let (of, _) = batcher("gemma3", "q8_0");
    assert!(of.engine().cache().window_pages().is_some() && !of.engine().supports_mixed_batches());
    check("gemma3", "q8_0");
}

/// Late steps also see the right window pages while these are released and taken.
#[test]
fn late_steps_see_their_windows() {
    let (plain, tokens) = batcher("gemma3", "q8_0");
    let prompts: Vec<&[u32]> = (0..7).map(|nth| &tokens[nth..40 + 7 * nth]).collect();
    let wanted = answers(&mut plain.with_async_scheduling(false), &prompts, 0).0;
    let (mut late, _) = batcher_on(late_support::late(), "gemma3", "q8_0");
    for apart in [0, 1, 5] {
        let (found, ahead) = answers(&mut late, &prompts, apart);
        assert_eq!(found, wanted, "{apart} steps apart");
        assert!(ahead > 20, "{apart} steps apart: {ahead} tokens");
    }
}
