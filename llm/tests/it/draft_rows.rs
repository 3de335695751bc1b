//! Several rows of one sequence in a step: as drafts are verified.

use crate::common::{data, forward};
use crate::parity_support::tables::{ids, rms};
use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::engine::{Engine, Settings, Step, TokenSource, WholePool};
use gristmill_llm::generation::Generation;
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::{Sampler, SamplingParams};
use gristmill_llm::sched::{Batcher, SequenceOptions, SpeculationStats};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Rows of the sequence in a step.
const ROWS: usize = 5;
/// RMS of the difference, in standard deviations of the logits.
const EXACT: f64 = 1e-3;

fn engine(family: &str, cache: CacheType, parallel: usize, drafts: usize) -> Engine {
    let file = Gguf::open(data(&format!("families/{family}.gguf"))).expect("a GGUF file");
    let options = Options {
        precision: Precision::Exact,
        quick: true,
        ..Options::default()
    };
    let settings = Settings {
        context: Some(256),
        cache,
        chunk: 32,
        parallel,
        drafts,
        ..Settings::default()
    };
    let device = open("cpu", &options).expect("a device");
    Engine::load(&file, device, settings, &|_| ()).expect("a model")
}

/// Rows of one sequence at consecutive positions see one another, in order.
#[test]
fn rows_of_a_sequence_are_causal_among_themselves() {
    let families = [
        "llama-q4_k_m",
        "gemma3-q8_0",
        "gpt-oss-mxfp4",
        "deepseek2-q8_0",
        "gemma4-q8_0",
    ];
    for family in families {
        let name = family.rsplit_once('-').map_or(family, |of| of.0);
        let tokens = ids(&data(&format!("families/{name}-tokens.txt")));
        // Positions on both sides of a page's end, and within a window.
        for begin in [3, 62, 80] {
            let mut e = engine(family, CacheType::F32, 8, 0);
            let vocabulary = e.model().vocabulary();
            let expected: Vec<f32> = (0..begin + ROWS)
                .map(|i| forward(&mut e, &tokens[i..=i], i, false))
                .skip(begin)
                .flatten()
                .collect();
            let mut e = engine(family, CacheType::F32, 8, 0);
            forward(&mut e, &tokens[..begin], 0, false);
            let pool = WholePool::new(&e);
            let row = |i: usize| pool.row(TokenSource::Token(tokens[begin + i]), begin + i);
            let rows: Vec<_> = (0..ROWS).map(row).collect();
            let step = Step {
                rows: &rows,
                ..Step::default()
            };
            e.run(&step).expect("a step");
            for (i, expected) in expected.chunks(vocabulary).enumerate() {
                let mut found = Vec::new();
                e.row_logits(i, &mut found).expect("logits");
                let error = rms(&found, expected);
                assert!(error <= EXACT, "{family} at {begin}, row {i}: rms {error}");
            }
        }
    }
}

/// A prompt whose parts return, as in an edit of a text.
fn repeating(tokens: &[u32]) -> Vec<u32> {
    let part = &tokens[..30];
    [part, &tokens[30..40], part, &tokens[40..45], &part[..10]].concat()
}

/// Returns answers to two prompts at a time, and how many drafts were run and kept.
fn answers(family: &str, temperature: f32, drafts: usize) -> ([Vec<u32>; 2], SpeculationStats) {
    let name = family.rsplit_once('-').map_or(family, |of| of.0);
    let tokens = ids(&data(&format!("families/{name}-tokens.txt")));
    let mut e = Batcher::new(engine(family, CacheType::F32, 2, drafts));
    if drafts > 0 {
        e = e.with_speculation();
    }
    let prompts = [repeating(&tokens), repeating(&tokens[3..])];
    let mut all: BTreeMap<_, _> = prompts
        .iter()
        .enumerate()
        .map(|(nth, prompt)| {
            let sampler = Sampler::new(SamplingParams {
                temperature,
                seed: nth as u64,
                ..SamplingParams::default()
            });
            let generation = Generation::new(sampler.expect("parameters"), 60, |_| false);
            let id = e.add(prompt, SequenceOptions::default()).expect("a prompt");
            (id, (nth, generation))
        })
        .collect();
    let mut answers = [Vec::new(), Vec::new()];
    let vocabulary = e.engine().model().vocabulary();
    while !all.is_empty() {
        let cell = RefCell::new(&mut all);
        let mut asking = |id, history: &[u32]| {
            cell.borrow_mut()
                .get_mut(&id)?
                .1
                .row_params(history, vocabulary)
        };
        let mut drawing = |id| cell.borrow().get(&id)?.1.sampling();
        for of in e.step_with(&mut asking, &mut drawing).expect("a step") {
            let (nth, generation) = all.get_mut(&of.sequence).expect("a sequence");
            let step = e.choose(of, generation, &mut |_| ()).expect("a token");
            answers[*nth].extend(step.token);
            match step.finish {
                None => e.push(of.sequence, step.token.expect("a token")),
                Some(_) => {
                    e.remove(of.sequence);
                    all.remove(&of.sequence);
                }
            }
        }
    }
    assert_eq!(e.load().leaked, Some(0));
    (answers, e.speculation())
}

/// Drafts change no token, chosen greedily or drawn.
#[test]
fn drafts_change_no_token() {
    let mut kept = 0;
    for family in [
        "llama-q4_k_m",
        "gemma3-q8_0",
        "gpt-oss-mxfp4",
        "deepseek2-q8_0",
    ] {
        for temperature in [0.0, 0.7] {
            let (plain, none) = answers(family, temperature, 0);
            let (drafted, stats) = answers(family, temperature, 6);
            assert_eq!(none, SpeculationStats::default());
            assert_eq!(drafted, plain, "{family} at {temperature}: {stats:?}");
            kept += stats.accepted;
        }
    }
    assert!(kept > 20, "{kept} drafts were kept");
}
