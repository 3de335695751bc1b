//! Conversations with a model with recurrent states: reuse gives the results of recomputing,
//! although a state cannot be truncated.

use crate::common::forward;
use crate::conversation_support::{apart, ask, exact_prefix, fresh};
use crate::parity_support::tables::{data, rms};
use gristmill_backend::{Opened, Options, Precision, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::Logits;
use gristmill_llm::engine::{CompiledModel, Engine, MemoryEstimate, Settings, Weights};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sched::{BLOCK, Batcher, Reuse, SequenceOptions};

/// Maximum difference of logits between runs with different chunk boundaries, in standard
/// deviations: arithmetic is exact except for the order of sums.
const NEAR: f64 = 1e-4;

fn file() -> Gguf {
    Gguf::open(data("families/qwen35-q8_0.gguf")).expect("a GGUF file")
}

fn opened() -> Opened {
    open(
        "cpu",
        &Options {
            precision: Precision::Exact,
            quick: true,
            ..Options::default()
        },
    )
    .expect("a device")
}

fn settings(parallel: usize) -> Settings {
    Settings {
        context: Some(256),
        cache: CacheType::F32,
        chunk: 64,
        parallel,
        ..Settings::default()
    }
}

/// Returns an engine in exact arithmetic with states for `parallel` sequences.
fn engine(parallel: usize) -> Engine {
    Engine::load(&file(), opened(), settings(parallel), &|_| ()).expect("an engine")
}

fn batcher(sequences: usize) -> Batcher {
    Batcher::new(engine(sequences))
}

fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (i * 37 + seed * 101 + i * i % 13) % 500)
        .collect()
}

#[test]
fn an_exact_prefix_changes_no_bit() {
    let (mut batcher, mut scratch) = (batcher(3), batcher(1));
    let text = text(1, 200);
    for len in [20, BLOCK + 1, 101, 170] {
        let begun = [1, BLOCK, len / 2, len];
        let fed = exact_prefix([&mut batcher, &mut scratch], &text, len, &begun, 10);
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
fn a_conversation_goes_on_and_is_edited() {
    for sequences in [1, 3] {
        let (mut batcher, mut scratch) = (batcher(sequences), batcher(1));
        let mut near = |logits: &[f32], prompt: &[u32]| {
            let error = rms(logits, &fresh(&mut scratch, prompt, Reuse::Any, 0).logits);
            assert!(error < NEAR, "{} tokens: {error}", prompt.len());
        };
        // Two turns: all of the first is reused.
        let first = text(1, 50);
        let asked = ask(&mut batcher, &first, Reuse::Any, 12);
        near(&asked.logits, &first);
        let held = asked.run;
        assert_eq!(held, [&first[..], &asked.answer[..11]].concat());
        let second = [&held[..], &text(2, 20)].concat();
        let asked = ask(&mut batcher, &second, Reuse::Any, 9);
        assert_eq!(asked.prefill.reused, held.len());
        near(&asked.logits, &second);
        // Another second question: continues at the end of the first answer if its
        // snapshot is still cached.
        let other = [&held[..], &text(3, 15)].concat();
        let asked = ask(&mut batcher, &other, Reuse::Any, 0);
        assert!(
            sequences == 1 || asked.prefill.reused == held.len(),
            "{:?}",
            asked.prefill
        );
        near(&asked.logits, &other);
        // Another answer to the first question.
        let asked = ask(&mut batcher, &first, Reuse::Any, 0);
        assert!(asked.prefill.run <= first.len(), "{:?}", asked.prefill);
        near(&asked.logits, &first);
        // A prefix that ends where no snapshot was taken.
        let cut = [&first[..41], &text(4, 9)].concat();
        let asked = ask(&mut batcher, &cut, Reuse::Any, 0);
        assert!(asked.prefill.reused <= 41);
        near(&asked.logits, &cut);
    }
}

#[test]
fn conversations_are_kept_side_by_side() {
    let mut batcher = batcher(3);
    let prompts: Vec<Vec<u32>> = (0..3).map(|i| text(i, 150)).collect();
    for prompt in &prompts {
        assert_eq!(ask(&mut batcher, prompt, Reuse::Any, 8).prefill.reused, 0);
    }
    for prompt in &prompts {
        assert_eq!(
            ask(&mut batcher, prompt, Reuse::Any, 0).prefill.reused,
            149 / BLOCK * BLOCK
        );
    }
    // With state rows for only one sequence most is recomputed, with correct results.
    let (mut few, mut scratch) = (self::batcher(1), self::batcher(1));
    for prompt in prompts.iter().chain(&prompts) {
        let asked = ask(&mut few, prompt, Reuse::Any, 0);
        assert!(
            rms(
                &asked.logits,
                &fresh(&mut scratch, prompt, Reuse::Any, 0).logits
            ) < NEAR,
            "{:?}",
            asked.prefill
        );
    }
    assert!(few.load().cached_states <= 3);
}

#[test]
fn the_same_prompt_has_the_same_answer() {
    let (mut batcher, mut scratch) = (batcher(1), batcher(1));
    let prompt = text(5, 77);
    let first = ask(&mut batcher, &prompt, Reuse::Exact, 12);
    let again = ask(&mut batcher, &prompt, Reuse::Exact, 12);
    assert_eq!(again.prefill.reused, 76 / BLOCK * BLOCK);
    assert!(again.logits == first.logits);
    assert_eq!(again.answer, first.answer);
    // Truncated to a position without a snapshot: everything before is recomputed.
    let cut = &again.run[..again.run.len() - 4];
    let asked = ask(&mut batcher, cut, Reuse::Any, 0);
    let expected = fresh(&mut scratch, cut, Reuse::Any, 0).logits;
    assert!(rms(&asked.logits, &expected) < NEAR, "{:?}", asked.prefill);
}

#[test]
fn scores_do_not_depend_on_what_came_before() {
    let (mut batcher, mut scratch) = (batcher(1), batcher(1));
    let prompt = text(6, 100);
    let scores = |batcher: &mut Batcher| {
        let mut rows: Vec<f32> = Vec::new();
        apart(batcher, &prompt, 64, &mut |engine, run| {
            rows.extend(engine.logits(run, Logits::All).expect("logits"));
        });
        rows
    };
    ask(&mut batcher, &text(7, 90), Reuse::Any, 5);
    assert!(scores(&mut batcher) == scores(&mut scratch));
}

/// Runs a prompt and then the `answer` most probable tokens. Returns the number of reused tokens,
/// the logits after the prompt, and all tokens that were run.
fn turn(
    batcher: &mut Batcher,
    prompt: &[u32],
    reuse: Reuse,
    answer: usize,
) -> (usize, Vec<f32>, Vec<u32>) {
    let options = SequenceOptions {
        reuse,
        batch_invariant: reuse == Reuse::Exact,
        ..SequenceOptions::default()
    };
    let id = batcher.add(prompt, options).expect("a prompt");
    let (mut logits, mut said) = (Vec::new(), 0);
    loop {
        let Some(of) = batcher.step(&mut |_, _| None).expect("a step").pop() else {
            continue;
        };
        let row = batcher.logits(of).expect("logits").to_vec();
        let token = (0..row.len())
            .max_by(|&a, &b| row[a].total_cmp(&row[b]))
            .expect("a token");
        if said == 0 {
            logits = row;
        }
        if said == answer {
            break;
        }
        said += 1;
        batcher.push(id, token as u32);
    }
    let (found, tokens) = (
        batcher.scheduler().reused_tokens(id),
        batcher.scheduler().tokens(id).to_vec(),
    );
    batcher.remove(id);
    (found.expect("it was admitted"), logits, tokens)
}

#[test]
fn conversations_over_a_pool_go_on_from_copies() {
    let (mut batcher, mut scratch) = (batcher(2), batcher(1));
    let mut near = |prompt: &[u32], logits: &[f32]| {
        let error = rms(logits, &fresh(&mut scratch, prompt, Reuse::Any, 0).logits);
        assert!(error < NEAR, "{} tokens: {error}", prompt.len());
    };
    let first = text(1, 100);
    let (found, logits, said) = turn(&mut batcher, &first, Reuse::Exact, 12);
    assert_eq!((found, said.len()), (0, 112));
    near(&first, &logits);
    // The next turn, and another one in its place.
    for seed in [2, 3] {
        let second = [&said[..], &text(seed, 20)].concat();
        let (found, logits, _) = turn(&mut batcher, &second, Reuse::Any, 5);
        assert_eq!(found, said.len());
        near(&second, &logits);
    }
    // The same prompt again, from the end of its exact rows, with the same bits.
    let (found, again, _) = turn(&mut batcher, &first, Reuse::Exact, 0);
    assert_eq!((found, again == logits), (99 / BLOCK * BLOCK, true));
    // At a new branch point the first sequence starts from token 0, and the next from the
    // snapshot that it left.
    for (seed, expected) in [(4, 0), (5, 32)] {
        let other = [&first[..50], &text(seed, 60)].concat();
        let (found, logits, _) = turn(&mut batcher, &other, Reuse::Any, 0);
        assert_eq!(found, expected);
        near(&other, &logits);
    }
    assert!(
        batcher.cached_bytes() > 0 && batcher.load().cached_states > 0,
        "{:?}",
        batcher.load()
    );
}

#[test]
fn a_prompt_in_a_separate_step_has_its_own_states() {
    let (mut batcher, mut alone) = (batcher(2), engine(1));
    let tokens = text(8, 200);
    let expected = forward(&mut alone, &tokens, 0, true);
    let (_, before, _) = turn(&mut batcher, &tokens[..90], Reuse::Exact, 3);
    let mut found = Vec::new();
    apart(&mut batcher, &tokens, 64, &mut |engine, run| {
        found.extend(engine.logits(run, Logits::All).expect("logits"));
    });
    assert!(rms(&found, &expected) < NEAR);
    assert_eq!(
        turn(&mut batcher, &tokens[..90], Reuse::Exact, 0).1,
        before,
        "no other state was touched"
    );
}

#[test]
fn a_pool_has_the_bytes_of_its_states() {
    let none = Weights::default();
    let file = file();
    let compiled =
        CompiledModel::new(&file, opened(), settings(3), &none, &|_| ()).expect("compiled");
    let engine = engine(3);
    assert_eq!(engine.cache().state_rows(), 9);
    // The allocated memory equals the estimate, except for block tables.
    let tables = engine.memory_bytes() - compiled.memory(&none);
    assert!(tables < 4096, "{tables} bytes that nobody counted");
    let estimate = |parallel, contexts| {
        let settings = Settings {
            contexts,
            ..settings(parallel)
        };
        MemoryEstimate::new(&file, &settings, u64::MAX / 2)
            .expect("one")
            .non_weight_bytes
    };
    // A cache of 2,048 rows has room for more than three contexts.
    let (row, state) = (
        engine.model().cache_row_bytes(CacheType::F32) as u64,
        engine.model().state_bytes() as u64,
    );
    assert_eq!(estimate(3, 1) - estimate(1, 1), 6 * state);
    assert_eq!(estimate(3, 10) - estimate(3, 1), (10 * 256 - 2048) * row);
}
