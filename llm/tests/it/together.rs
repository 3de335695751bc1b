//! Batch-invariant sequences have the tokens that each has in a batch of one, and their pages are
//! reused.

use crate::parity_support::tables::{data, ids};
use gristmill_backend::{Options, open};
use gristmill_llm::arch::AdapterScales;
use gristmill_llm::engine::{DecodeRow, Engine, Pages, Settings, Step, TokenSource};
use gristmill_llm::generation::{Constraint, Generation, ModelOutput};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::{RowSampling, Sampler, SamplingParams, TokenSet};
use gristmill_llm::sched::{
    Batcher, ConstraintError, ReadySequence, Reuse, SequenceId, SequenceOptions,
};
use std::collections::BTreeMap;

/// Sequences of a step.
const PARALLEL: usize = 4;
/// Tokens of an answer.
const ANSWER: usize = 12;

fn engine(family: &str, quant: &str) -> (Engine, Vec<u32>) {
    engine_on("cpu", family, quant, PARALLEL)
}

/// Returns an engine on a device with room for `parallel` sequences.
fn engine_on(device: &str, family: &str, quant: &str, parallel: usize) -> (Engine, Vec<u32>) {
    let file = Gguf::open(data(&format!("families/{family}-{quant}.gguf"))).expect("a GGUF file");
    let opened = open(
        device,
        &Options {
            quick: true,
            ..Options::default()
        },
    )
    .expect("a device");
    let settings = Settings {
        context: Some(256),
        chunk: 128,
        parallel,
        ..Settings::default()
    };
    let engine = Engine::load(&file, opened, settings, &|_| ()).expect("a model");
    (engine, ids(&data(&format!("families/{family}-tokens.txt"))))
}

/// A request: its prompt, and the seed of its answer; greedy without a seed.
#[derive(Clone)]
struct Asked {
    prompt: Vec<u32>,
    seed: Option<u64>,
}

fn sampler(asked: &Asked) -> Sampler {
    let params = match asked.seed {
        Some(seed) => SamplingParams {
            seed,
            temperature: 1.0,
            ..SamplingParams::default()
        },
        None => SamplingParams::greedy(),
    };
    Sampler::new(params).expect("parameters in range")
}

/// Options of sequences with logits that have the same bits whatever else is in the batch.
const INVARIANT: SequenceOptions = SequenceOptions {
    hidden: false,
    reuse: Reuse::Exact,
    batch_invariant: true,
    adapters: AdapterScales::BASE,
    speculates: false,
};

/// Returns the batch-invariant answers to requests that are added `apart` steps after each other.
fn answers(batcher: &mut Batcher, asked: &[Asked], apart: usize) -> Vec<Vec<u32>> {
    answers_with(batcher, asked, apart, INVARIANT)
}

/// Returns [`answers`] with the given options.
fn answers_with(
    batcher: &mut Batcher,
    asked: &[Asked],
    apart: usize,
    options: SequenceOptions,
) -> Vec<Vec<u32>> {
    let mut samplers: Vec<Sampler> = asked.iter().map(sampler).collect();
    let mut answers = vec![Vec::new(); asked.len()];
    let mut here: BTreeMap<SequenceId, usize> = BTreeMap::new();
    let mut step = 0;
    let mut come = 0;
    while come < asked.len() || !here.is_empty() {
        while come < asked.len() && step >= come * apart {
            here.insert(
                batcher.add(&asked[come].prompt, options).expect("a prompt"),
                come,
            );
            come += 1;
        }
        let stepped: Vec<ReadySequence> = batcher.step(&mut |_, _| None).expect("a step");
        for of in stepped {
            let i = here[&of.sequence];
            let history = batcher.scheduler().tokens(of.sequence).to_vec();
            let logits = batcher.logits(of).expect("logits");
            let token = samplers[i].sample(logits, &history).expect("a token");
            if asked[i].seed.is_none()
                && let Some(probable) = batcher.most_probable(of)
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

/// Requests with shared prefixes and different ends, some with a seed.
fn requests(tokens: &[u32]) -> Vec<Asked> {
    let of = |begin: usize, end: usize, seed| Asked {
        prompt: tokens[begin..end].to_vec(),
        seed,
    };
    vec![
        of(0, 70, None),
        of(0, 33, Some(7)),
        of(5, 45, None),
        of(0, 90, Some(1)),
        of(0, 70, Some(3)),
        of(2, 3, None),
    ]
}

fn check(family: &str, quant: &str) {
    check_on("cpu", family, quant, PARALLEL);
}

fn check_on(device: &str, family: &str, quant: &str, parallel: usize) {
    let (engine, tokens) = engine_on(device, family, quant, parallel);
    let mut batcher = Batcher::new(engine);
    let asked = requests(&tokens);
    let alone: Vec<Vec<u32>> = asked
        .iter()
        .map(|one| answers(&mut batcher, std::slice::from_ref(one), 0).remove(0))
        .collect();
    for apart in [0, 1, 5] {
        assert_eq!(
            answers(&mut batcher, &asked, apart),
            alone,
            "{family}, {apart} steps apart"
        );
    }
    // With an empty prefix cache.
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
fn states_answer_as_alone() {
    check("qwen35", "q8_0");
    check("qwen35moe", "q8_0");
}

#[test]
fn steps_have_the_size_of_the_largest_where_a_text_must_not_depend_on_others() {
    for invariant in [true, false] {
        let (engine, tokens) = engine("llama", "q4_k_m");
        let mut batcher = Batcher::new(engine);
        let options = SequenceOptions {
            reuse: Reuse::Exact,
            batch_invariant: invariant,
            ..SequenceOptions::default()
        };
        let asked = &requests(&tokens)[1..2];
        let first = answers_with(&mut batcher, asked, 0, options);
        assert_eq!(
            !batcher.engine().batch_launches(PARALLEL).is_empty(),
            invariant
        );
        // In a batch of one, its text is the same every time.
        assert_eq!(answers_with(&mut batcher, asked, 0, options), first);
    }
}

/// Returns the bits of a row's logits, run in a batch with `others` other rows.
fn beside(engine: &mut Engine, tokens: &[u32], others: usize) -> Vec<u32> {
    let pages: Vec<Vec<u32>> = (0..=others as u32).map(|page| vec![page]).collect();
    let windowed = engine.cache().window_pages().is_some();
    for (position, &token) in tokens.iter().enumerate() {
        let windows = |all| if windowed { all } else { &[][..] };
        let own = pages.iter().zip(0..).map(|(all, state)| Pages {
            all,
            windows: windows(&all[..]),
            state,
            ..Pages::default()
        });
        let row = |pages| DecodeRow {
            token: TokenSource::Token(token),
            position,
            pages,
            sampling: RowSampling::greedy(),
        };
        let rows: Vec<DecodeRow> = own.map(row).collect();
        engine
            .run(&Step {
                rows: &rows,
                batch_invariant: true,
                ..Step::default()
            })
            .expect("a step");
    }
    let mut logits = Vec::new();
    engine.row_logits(0, &mut logits).expect("logits");
    logits.into_iter().map(f32::to_bits).collect()
}

/// Families that must be bit-identical.
const FAMILIES: [(&str, &str); 5] = [
    ("llama", "q4_k_m"),
    ("qwen3moe", "q8_0"),
    ("deepseek2", "q8_0"),
    ("gemma4", "q8_0"),
    ("qwen35", "q8_0"),
];

/// Checks that a row has the same bits on a device with each of these numbers of other rows.
fn same_bits(device: &str, others: &[usize]) {
    for (family, quant) in FAMILIES {
        let (mut engine, tokens) = engine_on(
            device,
            family,
            quant,
            others.iter().max().expect("some") + 1,
        );
        let of: Vec<Vec<u32>> = others
            .iter()
            .map(|&others| beside(&mut engine, &tokens[..20], others))
            .collect();
        let same: Vec<bool> = of.iter().map(|bits| *bits == of[0]).collect();
        assert!(
            same.iter().all(|&same| same),
            "{family} on {device}, beside {others:?}: {same:?}"
        );
    }
}

#[test]
fn a_row_has_the_same_bits_whatever_is_beside_it() {
    same_bits("cpu", &[0, 1, 2, 3]);
    same_bits("cpu", &[0, 63]);
}

/// On a GPU, also answers with 64 sequences in a batch.
#[cfg(feature = "cuda-tests")]
#[test]
fn rows_on_cuda_are_as_alone() {
    same_bits("cuda", &[0, 1, 7, 8, 31, 63]);
    FAMILIES
        .iter()
        .for_each(|(family, quant)| check_on("cuda", family, quant, 64));
}

/// A constraint that allows other tokens at each step.
struct Two(u32);

impl Constraint for Two {
    fn mask(&mut self, tokens: &mut TokenSet) -> Result<(), ConstraintError> {
        let words = tokens.words().len() as u32;
        tokens.keep(
            &(0..words)
                .map(|word| 0x9249_2492u32.rotate_left(self.0 + word))
                .collect::<Vec<_>>(),
        );
        Ok(())
    }
    fn accept(&mut self, _: u32) -> Result<bool, ConstraintError> {
        self.0 += 1;
        Ok(false)
    }
}

/// Returns a generation with its own parameters.
fn own(nth: usize) -> Generation<'static> {
    let all = SamplingParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..SamplingParams::default()
    };
    let penalties = SamplingParams {
        repeat_penalty: 1.3,
        presence_penalty: 0.5,
        ..SamplingParams::greedy()
    };
    let params = match nth {
        0 => SamplingParams {
            top_p: 0.9,
            ..SamplingParams::default()
        },
        1 => penalties,
        2 => SamplingParams { top_p: 0.2, ..all },
        3 => SamplingParams {
            top_k: 20,
            frequency_penalty: 0.3,
            ..all
        },
        4 => SamplingParams::greedy(),
        _ => all,
    };
    let sampler = Sampler::new(SamplingParams {
        seed: nth as u64,
        ..params
    })
    .expect("parameters in range");
    let one =
        Generation::new(sampler, ANSWER, |_| false).with_bias(vec![(3, 2.0), (nth as u32, -100.0)]);
    if nth.is_multiple_of(2) {
        one.with_constraint(Box::new(Two(nth as u32)))
    } else {
        one
    }
}

/// Returns the answers to these prompts, each with its own sampling, and the number of tokens
/// chosen from device candidates.
fn own_answers(batcher: &mut Batcher, prompts: &[(usize, &[u32])]) -> (Vec<Vec<u32>>, usize) {
    let (vocabulary, context) = (
        batcher.engine().model().vocabulary(),
        batcher.engine().context(),
    );
    let mut here = BTreeMap::new();
    for (at, &(nth, prompt)) in prompts.iter().enumerate() {
        here.insert(
            batcher.add(prompt, INVARIANT).expect("a prompt"),
            (at, own(nth)),
        );
    }
    let (mut answers, mut told) = (vec![Vec::new(); prompts.len()], 0);
    while !here.is_empty() {
        let mut asking =
            |sequence, history: &[u32]| here.get_mut(&sequence)?.1.row_params(history, vocabulary);
        for of in batcher.step(&mut asking).expect("a step") {
            let Some((at, generation)) = here.get_mut(&of.sequence) else {
                panic!("{of:?} is nobody's")
            };
            let history = batcher.scheduler().tokens(of.sequence).to_vec();
            let token = batcher
                .candidates(of)
                .and_then(|ranked| generation.choose_from_candidates(ranked, &history));
            told += usize::from(token.is_some());
            let given = match token {
                Some(token) => ModelOutput::Token(token),
                None => ModelOutput::Logits(batcher.logits(of).expect("logits")),
            };
            let step = generation.take(given, &history, context).expect("a token");
            let token = step.token.expect("a token");
            answers[*at].push(token);
            match step.finish {
                None => batcher.push(of.sequence, token),
                Some(_) => {
                    batcher.remove(of.sequence);
                    here.remove(&of.sequence);
                }
            }
        }
    }
    (answers, told)
}

#[test]
fn sampled_answers_are_independent_of_the_sampler_and_the_batch() {
    let (engine, tokens) = engine("qwen3moe", "q8_0");
    let prompts: Vec<(usize, &[u32])> = (0..6)
        .map(|nth| (nth, &tokens[nth..40 + 7 * nth]))
        .collect();
    let mut batcher = Batcher::new(engine).with_candidates(false);
    let (alone, told): (Vec<_>, Vec<_>) = prompts
        .iter()
        .map(|one| own_answers(&mut batcher, &[*one]))
        .unzip();
    let alone = alone.concat();
    assert!(told.iter().all(|&told| told == 0));
    assert_eq!(own_answers(&mut batcher, &prompts).0, alone);
    let mut batcher = batcher.with_candidates(true);
    let (ranked, told) = own_answers(&mut batcher, &prompts);
    assert_eq!(ranked, alone);
    assert!(
        told > 3 * ANSWER,
        "{told} of {} tokens",
        prompts.len() * ANSWER
    );
    let one = own_answers(&mut batcher, &prompts[2..3]);
    assert_eq!(one.0, alone[2..3]);
}
