//! Many sequences at a time have the tokens that each has alone, where somebody wants the same text again; and what they leave is used again.

#[path = "parity_support/tables.rs"]
mod tables;

use gristmill_backend::{Options, open};
use gristmill_llm::engine::{Engine, Row, Settings};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::prefix::Reuse;
use gristmill_llm::sampling::{Sampler, SamplingParams};
use gristmill_llm::sched::{Batcher, SequenceId, Stepped};
use std::collections::BTreeMap;
use tables::{data, ids};

/// Sequences of a step.
const PARALLEL: usize = 4;
/// Tokens of an answer.
const ANSWER: usize = 12;

fn engine(family: &str, quant: &str) -> (Engine, Vec<u32>) {
    let file = Gguf::open(data(&format!("families/{family}-{quant}.gguf"))).expect("a GGUF file");
    let opened = open("cpu", &Options::default()).expect("a device");
    let settings = Settings { context: Some(256), chunk: 128, parallel: Some(PARALLEL), ..Settings::default() };
    let engine = Engine::load(&file, opened, settings, &|_| ()).expect("a model");
    (engine, ids(&data(&format!("families/{family}-tokens.txt"))))
}

/// A request: its prompt, and the seed of its answer; the most probable tokens without.
#[derive(Clone)]
struct Asked {
    prompt: Vec<u32>,
    seed: Option<u64>,
}

fn sampler(asked: &Asked) -> Sampler {
    let params = match asked.seed {
        Some(seed) => SamplingParams { seed, temperature: 1.0, ..SamplingParams::default() },
        None => SamplingParams::greedy(),
    };
    Sampler::new(params).expect("parameters in range")
}

/// The answers to these, of which each is added so many steps after the one before.
fn answers(batcher: &mut Batcher, asked: &[Asked], apart: usize) -> Vec<Vec<u32>> {
    let mut samplers: Vec<Sampler> = asked.iter().map(sampler).collect();
    let mut answers = vec![Vec::new(); asked.len()];
    let mut here: BTreeMap<SequenceId, usize> = BTreeMap::new();
    let mut step = 0;
    let mut come = 0;
    while come < asked.len() || !here.is_empty() {
        while come < asked.len() && step >= come * apart {
            here.insert(batcher.add(&asked[come].prompt, Reuse::Exact).expect("a prompt"), come);
            come += 1;
        }
        let stepped: Vec<Stepped> = batcher.step().expect("a step");
        for of in stepped {
            let i = here[&of.sequence];
            let history = batcher.scheduler().tokens(of.sequence).to_vec();
            let logits = batcher.logits(of).expect("logits");
            let token = samplers[i].sample(logits, &history).expect("a token");
            if asked[i].seed.is_none()
                && let Some(probable) = batcher.most_probable(of).expect("a token")
            {
                assert_eq!(probable, token, "the device chooses as the host does");
            }
            answers[i].push(token);
            match answers[i].len() < ANSWER {
                true => batcher.push(of.sequence, token),
                false => {
                    batcher.remove(of.sequence);
                    here.remove(&of.sequence);
                }
            }
        }
        step += 1;
    }
    assert_eq!(batcher.load().pages, 0, "nobody has a page");
    answers
}

/// Requests that begin alike and end at other places, some with a seed.
fn requests(tokens: &[u32]) -> Vec<Asked> {
    let of = |begin: usize, end: usize, seed| Asked { prompt: tokens[begin..end].to_vec(), seed };
    vec![of(0, 70, None), of(0, 33, Some(7)), of(5, 45, None), of(0, 90, Some(1)), of(0, 70, Some(3)), of(2, 3, None)]
}

fn check(family: &str, quant: &str) {
    let (engine, tokens) = engine(family, quant);
    let mut batcher = Batcher::new(engine, true).unwrap_or_else(|_| panic!("{family} shares steps"));
    let asked = requests(&tokens);
    let alone: Vec<Vec<u32>> =
        asked.iter().map(|one| answers(&mut batcher, std::slice::from_ref(one), 0).remove(0)).collect();
    for apart in [0, 1, 5] {
        assert_eq!(answers(&mut batcher, &asked, apart), alone, "{family}, {apart} steps apart");
    }
    // Nothing is known of earlier ones.
    batcher.reset();
    assert_eq!(answers(&mut batcher, &asked, 2), alone, "{family}, afresh");
}

#[test]
fn llama_answers_as_alone() {
    check("llama", "q4_k_m");
}

#[test]
fn experts_answer_as_alone() {
    check("qwen3moe", "q8_0");
}

#[test]
fn latents_answer_as_alone() {
    check("deepseek2", "q8_0");
}

#[test]
fn windows_and_shared_caches_answer_as_alone() {
    check("gemma4", "q8_0");
}

#[test]
fn steps_have_the_size_of_the_largest_where_a_text_must_not_depend_on_others() {
    for invariant in [true, false] {
        let (engine, tokens) = engine("llama", "q4_k_m");
        let mut batcher = Batcher::new(engine, invariant).unwrap_or_else(|_| panic!("it shares steps"));
        let asked = &requests(&tokens)[1..2];
        let first = answers(&mut batcher, asked, 0);
        let launches = [1, PARALLEL].map(|sequences| !batcher.engine().row_launches(sequences).is_empty());
        assert_eq!(launches, [!invariant, invariant]);
        // Alone, its text is the same every time.
        assert_eq!(answers(&mut batcher, asked, 0), first);
    }
}

/// Bits of a row's logits, run beside so many others.
fn beside(engine: &mut Engine, tokens: &[u32], others: usize) -> Vec<u32> {
    let pages: Vec<Vec<u32>> = (0..=others as u32).map(|page| vec![page]).collect();
    for (position, &token) in tokens.iter().enumerate() {
        let row = |pages| Row { token, position, pages };
        let rows: Vec<Row> = pages.iter().map(|pages| row(pages)).collect();
        engine.step_rows_alike(&rows).expect("a step");
    }
    let mut logits = Vec::new();
    engine.row_logits(0, &mut logits).expect("logits");
    logits.into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_row_has_the_same_bits_whatever_is_beside_it() {
    for (family, quant) in [("llama", "q4_k_m"), ("qwen3moe", "q8_0"), ("deepseek2", "q8_0"), ("gemma4", "q8_0")] {
        let (mut engine, tokens) = engine(family, quant);
        let of: Vec<Vec<u32>> = (0..PARALLEL).map(|others| beside(&mut engine, &tokens[..20], others)).collect();
        assert!(
            of.iter().all(|bits| *bits == of[0]),
            "{family}: {:?}",
            of.iter().map(|bits| *bits == of[0]).collect::<Vec<_>>()
        );
    }
}
