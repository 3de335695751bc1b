//! Runs prompts and answers on a batcher.

use gristmill_llm::arch::AdapterScales;
use gristmill_llm::engine::{Engine, TokenRun};
use gristmill_llm::generation::Generation;
use gristmill_llm::sampling::{Sampler, SamplingParams};
use gristmill_llm::sched::{Batcher, PrefillStats, Reuse, SequenceOptions};
use std::cell::RefCell;
use std::ops::ControlFlow;

/// Result of a prompt and its answer.
pub struct Asked {
    pub prefill: PrefillStats,
    /// Logits after the prompt.
    pub logits: Vec<f32>,
    pub answer: Vec<u32>,
    /// Tokens of the sequence that were run: the prompt, and the answer except for its last token.
    pub run: Vec<u32>,
}

/// Runs a prompt and generates an answer of `tokens` tokens, at least one, with a fixed seed.
pub fn ask(batcher: &mut Batcher, prompt: &[u32], reuse: Reuse, tokens: usize) -> Asked {
    ask_with(batcher, prompt, (reuse, AdapterScales::default()), tokens)
}

/// The same with factors of adapters.
pub fn ask_with(
    batcher: &mut Batcher,
    prompt: &[u32],
    (reuse, adapters): (Reuse, AdapterScales),
    tokens: usize,
) -> Asked {
    let params = SamplingParams {
        temperature: 1.5,
        seed: 7,
        ..SamplingParams::default()
    };
    let generation = Generation::new(
        Sampler::new(params).expect("parameters"),
        tokens.max(1),
        |_| false,
    );
    let id = batcher
        .add(
            prompt,
            SequenceOptions {
                reuse,
                adapters,
                ..SequenceOptions::default()
            },
        )
        .expect("a prompt");
    let (generation, vocabulary) = (
        RefCell::new(generation),
        batcher.engine().model().vocabulary(),
    );
    let (mut logits, mut answer) = (Vec::new(), Vec::new());
    let mut reused = None;
    loop {
        let mut asking =
            |_, history: &[u32]| generation.borrow_mut().row_params(history, vocabulary);
        let stepped = batcher
            .step_with(&mut asking, &mut |_| generation.borrow().sampling())
            .expect("a step");
        reused = reused.or(batcher.scheduler().reused_tokens(id));
        let Some(&of) = stepped.first() else { continue };
        if answer.is_empty() {
            logits = batcher.logits(of).expect("logits").to_vec();
        }
        let step = batcher
            .choose(of, &mut generation.borrow_mut(), &mut |_| ())
            .expect("a token");
        answer.extend(step.token);
        match (step.token, step.finish) {
            (Some(token), None) => batcher.push(id, token),
            _ => break,
        }
    }
    let run = batcher.scheduler().tokens(id).to_vec();
    batcher.remove(id);
    let reused = reused.expect("it was admitted");
    let prefill = PrefillStats {
        reused,
        run: prompt.len() - reused,
        complete: true,
        ..PrefillStats::default()
    };
    Asked {
        prefill,
        logits,
        answer,
        run,
    }
}

/// Resets the batcher and calls [`ask`].
pub fn fresh(scratch: &mut Batcher, prompt: &[u32], reuse: Reuse, tokens: usize) -> Asked {
    scratch.reset();
    let asked = ask(scratch, prompt, reuse, tokens);
    assert_eq!(asked.prefill.reused, 0);
    asked
}

/// Runs the first `len` tokens of a text after prompts with prefixes of it, and others in between.
///
/// Checks that logits and answer are bit-identical to those of a batcher without them. Returns the
/// number of reused tokens of each run.
pub fn exact_prefix(
    [batcher, scratch]: [&mut Batcher; 2],
    text: &[u32],
    len: usize,
    begun: &[usize],
    tokens: usize,
) -> Vec<PrefillStats> {
    let prompt = &text[..len];
    // Other tokens in between.
    let other: Vec<u32> = prompt.iter().rev().copied().collect();
    let expected = fresh(scratch, prompt, Reuse::Exact, tokens);
    let each = |&begun: &usize| {
        ask(batcher, &other, Reuse::Exact, 0);
        ask(batcher, &text[..begun], Reuse::Exact, tokens);
        let found = ask(batcher, prompt, Reuse::Exact, tokens);
        let prefill = found.prefill;
        assert!(
            found.logits == expected.logits,
            "{len} after {begun}: {prefill:?}"
        );
        assert_eq!(found.answer, expected.answer, "{len} after {begun}");
        prefill
    };
    begun.iter().map(each).collect()
}

/// Runs a whole prompt in borrowed pages, in parts of at most `most` tokens.
pub fn apart(
    batcher: &mut Batcher,
    prompt: &[u32],
    most: usize,
    each: &mut dyn FnMut(&mut Engine, TokenRun),
) {
    let mut run = |engine: &mut Engine, run: TokenRun<'_>| {
        each(engine, run);
        Ok(ControlFlow::Continue(()))
    };
    let flow = batcher
        .run_uncached((prompt, AdapterScales::default()), most, &mut run)
        .expect("run");
    assert_eq!(flow, Some(ControlFlow::Continue(())), "there are pages");
}
