//! Prefix cache: what reuse saves, and that exact reuse changes no result.

use crate::conversation_support::{apart, ask, exact_prefix, fresh};
use crate::parity_support;
use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::{CacheType, Logits};
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::generation::{Finish, Generation};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::language;
use gristmill_llm::sampling::{Sampler, SamplingParams};
use gristmill_llm::sched::{BLOCK, Batcher, Reuse, SequenceOptions, generate};
use std::ops::ControlFlow;

/// Returns a batcher of one sequence with a pool of `contexts` contexts of 2,048
/// tokens, and a text.
fn batcher(contexts: usize) -> (Batcher, Vec<u32>) {
    let settings = Settings {
        contexts,
        ..Settings::default()
    };
    batcher_of(Precision::default(), settings)
}

fn batcher_of(precision: Precision, settings: Settings) -> (Batcher, Vec<u32>) {
    let file = Gguf::open(parity_support::asset("demo-glm-Q4_0.gguf")).expect("the demo model");
    let opened = open(
        "cpu",
        &Options {
            precision,
            quick: true,
            ..Options::default()
        },
    )
    .expect("a device");
    let settings = Settings {
        context: Some(2048),
        ..settings
    };
    let engine = Engine::load(&file, opened, settings, &|_| ()).expect("an engine");
    let tokenizer = language::tokenizer(file.metadata()).expect("a tokenizer");
    let story = "Once upon a time there was a green frog who asked: what is 17 plus 25? The capital of Japan is Tokyo. ";
    (
        Batcher::new(engine),
        tokenizer.encode(&story.repeat(60), false, false),
    )
}

#[test]
fn an_exact_prefix_changes_no_bit() {
    let (mut batcher, text) = batcher(4);
    for len in [20, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 600, 1200] {
        batcher.reset();
        let (mut scratch, _) = self::batcher(1);
        let begun = [1, BLOCK, len / 2, len];
        let fed = exact_prefix([&mut batcher, &mut scratch], &text, len, &begun, 30);
        let least = |begun: usize| (begun - 1) / BLOCK * BLOCK;
        assert!(
            fed.iter()
                .zip(begun)
                .all(|(fed, begun)| fed.reused >= least(begun)),
            "{len}: {fed:?}"
        );
    }
}

#[test]
fn conversations_are_kept_side_by_side() {
    let (mut batcher, text) = batcher(2);
    let prompts: Vec<&[u32]> = (0..4).map(|i| &text[i * 7..i * 7 + 200]).collect();
    for prompt in &prompts {
        assert_eq!(ask(&mut batcher, prompt, Reuse::Any, 50).prefill.reused, 0);
    }
    assert!(batcher.cached_bytes() > 0);
    for prompt in &prompts {
        let prefill = ask(&mut batcher, prompt, Reuse::Any, 0).prefill;
        assert!(
            prefill.reused >= 199 / BLOCK * BLOCK && prefill.run <= BLOCK,
            "{prefill:?}"
        );
    }
    let shared = [&text[..100], &text[300..400]].concat();
    let reused = ask(&mut batcher, &shared, Reuse::Any, 0).prefill.reused;
    assert!((100 / BLOCK * BLOCK..=100).contains(&reused), "{reused}");
}

#[test]
fn a_broken_off_prompt_leaves_what_was_done() {
    let (mut batcher, text) = batcher(1);
    let mut chunks = 0;
    let mut progress = |_, _| {
        chunks += 1;
        if chunks > 2 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let options = SequenceOptions {
        reuse: Reuse::Exact,
        batch_invariant: false,
        ..SequenceOptions::default()
    };
    let generation = Generation::new(
        Sampler::new(SamplingParams::greedy()).expect("parameters"),
        5,
        |_| false,
    );
    let each = &mut |_| panic!("no token is chosen");
    let done = generate(
        &mut batcher,
        &text[..1300],
        options,
        generation,
        &mut progress,
        each,
    )
    .expect("broken off");
    assert_eq!(
        (done.prefill.run, done.prefill.complete, done.finish),
        (1024, false, Finish::Stopped)
    );
    assert_eq!(
        ask(&mut batcher, &text[..1300], Reuse::Exact, 0)
            .prefill
            .reused,
        1024
    );
}

#[test]
fn the_same_prompt_has_the_same_answer() {
    let (mut batcher, text) = batcher(1);
    let first = ask(&mut batcher, &text[..77], Reuse::Exact, 20);
    let again = ask(&mut batcher, &text[..77], Reuse::Exact, 20);
    assert_eq!(again.prefill.reused, 2 * BLOCK);
    assert!(again.logits == first.logits);
    assert_eq!(again.answer, first.answer);
}

/// Returns the logits of every token of a prompt, run in borrowed pages.
fn scores(batcher: &mut Batcher, prompt: &[u32]) -> Vec<Vec<f32>> {
    let (vocabulary, chunk) = (
        batcher.engine().model().vocabulary(),
        batcher.engine().chunk(),
    );
    let mut rows: Vec<Vec<f32>> = Vec::new();
    apart(batcher, prompt, chunk, &mut |engine, run| {
        rows.extend(
            engine
                .logits(run, Logits::All)
                .expect("logits")
                .chunks(vocabulary)
                .map(<[f32]>::to_vec),
        );
    });
    rows
}

#[test]
fn a_prompt_is_scored_by_what_its_tokens_are_predicted_from() {
    let (mut batcher, text) = batcher(2);
    let prompt = &text[..700];
    let before = ask(&mut batcher, &text[300..900], Reuse::Any, 0);
    let rows = scores(&mut batcher, prompt);
    assert_eq!(rows.len(), 700);
    // Activations are rounded to int8, which changes logits by 1.4 % (RMS): other kinds of steps
    // round differently. Rows of other tokens are not even similar.
    let squares = |row: &mut dyn Iterator<Item = f32>| row.map(|x| x * x).sum::<f32>();
    let difference = |a: &[f32], b: &[f32]| {
        (squares(&mut a.iter().zip(b).map(|(a, b)| a - b)) / squares(&mut a.iter().copied())).sqrt()
    };
    let (mut scratch, _) = self::batcher(1);
    for at in [1, 40, 512, 513, 699] {
        let logits = fresh(&mut scratch, &prompt[..at], Reuse::Any, 0).logits;
        let (same, other) = (
            difference(&logits, &rows[at - 1]),
            difference(&logits, &rows[at.max(2) - 2]),
        );
        assert!(
            same < 0.1 && (at == 1 || other > 2.0 * same),
            "{at}: {same} {other}"
        );
    }
    // Scores are bit-identical whatever the pool holds, and the prefix cache
    // keeps its earlier content.
    assert!(scores(&mut scratch, prompt) == rows);
    let again = ask(&mut batcher, &text[300..900], Reuse::Any, 0);
    assert!(
        again.prefill.reused >= 599 / BLOCK * BLOCK,
        "{:?}",
        again.prefill
    );
    assert!(difference(&before.logits, &again.logits) < 0.1);
}

#[test]
fn hidden_rows_are_those_of_every_token_wherever_steps_are_cut() {
    // Rounded activations or cache rows could choose other experts in another kind of step.
    let settings = Settings {
        cache: CacheType::F32,
        ..Settings::default()
    };
    let (mut batcher, text) = batcher_of(Precision::Exact, settings);
    let (width, chunk) = (batcher.engine().model().width(), batcher.engine().chunk());
    let rows_of = |batcher: &mut Batcher, prompt: &[u32]| {
        let mut all = Vec::new();
        apart(batcher, prompt, chunk, &mut |engine, run| {
            engine
                .hidden_rows(run, &mut |rows| all.extend_from_slice(rows))
                .expect("rows");
        });
        all
    };
    let whole = rows_of(&mut batcher, &text[..600]);
    assert_eq!(whole.len(), 600 * width);
    // A token's row depends only on earlier tokens: it is the same in a shorter prompt, except for
    // the order of sums in another kind of step.
    for len in [1, 33, 513] {
        let short = rows_of(&mut batcher, &text[..len]);
        let (row, other) = (
            &whole[(len - 1) * width..len * width],
            &short[(len - 1) * width..],
        );
        let length = |row: &mut dyn Iterator<Item = f32>| row.map(|x| x * x).sum::<f32>().sqrt();
        let apart = length(&mut row.iter().zip(other).map(|(a, b)| a - b));
        assert!(
            apart < 1e-5 * length(&mut row.iter().copied()),
            "{len}: {apart}"
        );
        assert!(length(&mut row.iter().copied()) > 0.0);
    }
    // It leaves nothing that affects later prompts.
    assert_eq!(
        ask(&mut batcher, &text[..600], Reuse::Any, 0).prefill.run,
        600
    );
}
