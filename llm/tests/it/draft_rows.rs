//! Several rows of one sequence in a step: as drafts are verified.

use crate::assistants::{DRAFTS, POSITIONS};
use crate::common::{data, forward};
use crate::parity_support::asset;
use crate::parity_support::tables::{argmax, ids, npy, rms};
use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::engine::{Engine, Settings, Step, TokenSource, WholePool};
use gristmill_llm::generation::Generation;
use gristmill_llm::gguf::Gguf;
use gristmill_llm::language;
use gristmill_llm::sampling::{Sampler, SamplingParams};
use gristmill_llm::sched::{
    Batcher, DraftOrigin, DraftSources, Drafter, SequenceOptions, SpeculationStats,
};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Rows of the sequence in a step.
const ROWS: usize = 5;
/// RMS of the difference, in standard deviations of the logits.
const EXACT: f64 = 1e-3;

fn engine(family: &str, cache: CacheType, parallel: usize, drafts: usize) -> Engine {
    engine_on("cpu", family, cache, [parallel, drafts])
}

fn engine_on(
    device: &str,
    family: &str,
    cache: CacheType,
    [parallel, drafts]: [usize; 2],
) -> Engine {
    let open_file = |name: &str| Gguf::open(data(&format!("families/{name}.gguf")));
    let mut file = open_file(family).expect("a GGUF file");
    if family == "gemma4-q8_0" {
        let assistant = open_file("gemma4-assistant-q8_0").expect("a GGUF file");
        file.attach_draft_block(assistant).expect("an assistant");
    }
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
        draft_block: drafts > 0,
        ..Settings::default()
    };
    let device = open(device, &options).expect("a device");
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

/// Drafts of a chunk are causal, and leave no trace in recurrent states: the step behind the kept
/// tokens has their logits, whatever came after them.
fn check_states(device: &str) {
    for family in ["qwen35-q8_0", "qwen35moe-q8_0"] {
        let name = family.rsplit_once('-').map_or(family, |of| of.0);
        let tokens = ids(&data(&format!("families/{name}-tokens.txt")));
        for (begin, own) in [(3, 1), (62, 3), (30, 2)] {
            let kept = begin + own;
            let mut e = engine_on(device, family, CacheType::F32, [2, 6]);
            let vocabulary = e.model().vocabulary();
            let expected: Vec<f32> = (0..kept + 4)
                .flat_map(|i| forward(&mut e, &tokens[i..=i], i, false))
                .collect();
            forward(&mut e, &tokens[..begin], 0, false);
            let pool = WholePool::new(&e);
            // One draft that would be kept, and others that would not.
            let drafted = [tokens[kept], tokens[7], tokens[9]];
            let chunk = [&tokens[begin..kept], &drafted[..]].concat();
            let step = Step {
                drafted: Some(drafted.len()),
                ..pool.step(&chunk, begin)
            };
            let chosen = e.run(&step).expect("a step").chosen;
            assert_eq!(chosen.len(), chunk.len());
            let check = |e: &Engine, row: usize, position: usize| {
                let mut found = Vec::new();
                e.row_logits(row, &mut found).expect("logits");
                let wanted = &expected[position * vocabulary..][..vocabulary];
                let error = rms(&found, wanted);
                assert!(error <= EXACT, "{family} at {position}: rms {error}");
                argmax(wanted)
            };
            for (row, chosen) in chosen.iter().enumerate().take(own + 1) {
                let wanted = check(&e, row, begin + row);
                assert_eq!(*chosen, Some(wanted as u32), "{family}, row {row}");
            }
            e.run(&pool.step(&tokens[kept..kept + 3], kept))
                .expect("a step");
            check(&e, 0, kept + 2);
        }
    }
}

#[test]
fn states_are_left_before_the_drafts_of_a_chunk() {
    check_states("cpu");
}

#[cfg(feature = "cuda-tests")]
#[test]
fn states_are_left_before_the_drafts_of_a_chunk_on_cuda() {
    check_states("cuda");
}

/// A prompt whose parts return, as in an edit of a text.
fn repeating(tokens: &[u32]) -> Vec<u32> {
    let part = &tokens[..30];
    [part, &tokens[30..40], part, &tokens[40..45], &part[..10]].concat()
}

/// Returns answers to one or two prompts at a time, and how many drafts were run and kept; without
/// an origin there are none.
fn answers(
    family: &str,
    temperature: f32,
    origin: Option<DraftOrigin>,
    sequences: usize,
) -> (Vec<Vec<u32>>, SpeculationStats) {
    let name = family.rsplit_once('-').map_or(family, |of| of.0);
    let tokens = ids(&data(&format!("families/{name}-tokens.txt")));
    let drafts = if origin.is_some() { 6 } else { 0 };
    let e = batcher(family, (2, drafts), origin);
    let prompts = [repeating(&tokens), repeating(&tokens[3..])];
    run(
        e,
        &prompts[..sequences],
        temperature,
        SequenceOptions::default(),
    )
}

/// Returns a batcher of so many sequences and rows of drafts, with drafts of this origin.
fn batcher(
    family: &str,
    (parallel, drafts): (usize, usize),
    origin: Option<DraftOrigin>,
) -> Batcher {
    let mut e = Batcher::new(engine(family, CacheType::F32, parallel, drafts));
    if let Some(origin) = origin {
        let drafter = match origin {
            DraftOrigin::Ngram => None,
            DraftOrigin::Block => Some(Drafter::Block),
            DraftOrigin::Model => {
                let other = engine(family, CacheType::F16, parallel, drafts);
                Some(Drafter::from_model(other, e.engine()).expect("a drafting model"))
            }
        };
        e = e.with_speculation(DraftSources {
            ngrams: origin == DraftOrigin::Ngram,
            drafter,
            assumes_times: true,
        });
    }
    e
}

/// Returns the answers to all prompts at a time, and how many drafts were run and kept.
fn run(
    mut e: Batcher,
    prompts: &[Vec<u32>],
    temperature: f32,
    options: SequenceOptions,
) -> (Vec<Vec<u32>>, SpeculationStats) {
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
            let id = e.add(prompt, options).expect("a prompt");
            (id, (nth, generation))
        })
        .collect();
    let mut answers = vec![Vec::new(); prompts.len()];
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

/// Returns the drafts that were kept, after checking that drafts change no answer to two prompts.
fn kept_drafts(family: &str, origin: DraftOrigin) -> u64 {
    kept_drafts_of(family, origin, 2)
}

/// The same for one or two prompts at a time.
fn kept_drafts_of(family: &str, origin: DraftOrigin, sequences: usize) -> u64 {
    let mut kept = 0;
    for temperature in [0.0, 0.7] {
        let (plain, none) = answers(family, temperature, None, sequences);
        let (drafted, stats) = answers(family, temperature, Some(origin), sequences);
        assert_eq!(none, SpeculationStats::default());
        assert_eq!(drafted, plain, "{family} at {temperature}: {stats:?}");
        assert_eq!(
            stats.counts(origin).drafted.iter().sum::<u64>(),
            stats.drafted()
        );
        kept += stats.accepted();
    }
    kept
}

/// Drafts change no token, chosen greedily or drawn.
#[test]
fn drafts_change_no_token() {
    let families = [
        "llama-q4_k_m",
        "gemma3-q8_0",
        "gpt-oss-mxfp4",
        "deepseek2-q8_0",
    ];
    let kept = families.map(|family| kept_drafts(family, DraftOrigin::Ngram));
    assert!(kept.iter().sum::<u64>() > 20, "{kept:?} drafts were kept");
}

#[test]
fn drafts_of_a_block_change_no_token() {
    let families = ["deepseek2-nextn-q8_0", "glm4moe-q8_0", "gemma4-q8_0"];
    // Random weights draft few tokens right, or none.
    for family in families {
        kept_drafts(family, DraftOrigin::Block);
    }
}

/// Drafts of a sequence with recurrent states change no answer.
#[test]
fn drafts_behind_states_change_no_token() {
    for sequences in [1, 2] {
        kept_drafts_of("qwen35moe-q8_0", DraftOrigin::Ngram, sequences);
        kept_drafts_of("qwen35-q8_0", DraftOrigin::Block, sequences);
    }
}

/// A sequence with recurrent states grows by a text that repeats, with another token now and then:
/// whether drafts are kept, some of them, or none, the logits are those of single tokens.
#[test]
fn kept_and_dropped_drafts_leave_the_states_of_single_tokens() {
    for family in ["qwen35-q8_0", "qwen35moe-q8_0"] {
        let name = family.rsplit_once('-').map_or(family, |of| of.0);
        let tokens = ids(&data(&format!("families/{name}-tokens.txt")));
        // Texts end their pages by other drafts.
        for begin in 0..4 {
            let part = &tokens[begin..begin + 20];
            check_text(family, &[part, part, &part[..begin]].concat(), tokens[40]);
        }
    }
}

/// Repeats the first 20 tokens of a prompt up to 230 tokens, with another token in two of 33
/// places, and checks the logits behind all of them.
fn check_text(family: &str, prompt: &[u32], other: u32) {
    let (mut text, mut found) = (prompt.to_vec(), Vec::new());
    let mut e = batcher(family, (2, 6), Some(DraftOrigin::Ngram));
    let vocabulary = e.engine().model().vocabulary();
    let id = e.add(prompt, SequenceOptions::default()).expect("a prompt");
    while text.len() < 230 {
        for of in e.step(&mut |_, _| None).expect("a step") {
            found.extend_from_slice(e.logits(of).expect("logits"));
            let token = match text.len() % 33 {
                13 | 31 => other,
                at => prompt[at % 20],
            };
            text.push(token);
            e.push(id, token);
        }
    }
    let stats = e.speculation();
    let (drafted, kept) = (stats.drafted(), stats.accepted());
    assert!(kept > 20 && drafted > kept + 5, "{family}: {stats:?}");
    let mut e = engine(family, CacheType::F32, 2, 0);
    for (nth, found) in found.chunks(vocabulary).enumerate() {
        let begin = if nth == 0 { 0 } else { prompt.len() + nth - 1 };
        let end = prompt.len() + nth;
        let wanted = forward(&mut e, &text[begin..end], begin, false);
        let error = rms(found, &wanted);
        assert!(error <= EXACT, "{family} at {end}: rms {error}");
    }
}

/// Batch-invariant rows have the same bits with drafts beside them, whatever else runs.
#[test]
fn drafts_change_no_bit_of_many_requests() {
    let tokens = ids(&data("families/llama-tokens.txt"));
    let prompts: Vec<_> = (0..64).map(|nth| repeating(&tokens[nth % 40..])).collect();
    let options = SequenceOptions {
        batch_invariant: true,
        ..SequenceOptions::default()
    };
    let answers = |drafts, origin| {
        // Eight fewer sequences than requests, so that rows are free as the last ones end.
        let e = batcher("llama-q4_k_m", (56, drafts), origin);
        run(e, &prompts, 0.0, options)
    };
    let (plain, drafted) = (answers(8, None), answers(8, Some(DraftOrigin::Ngram)));
    assert_eq!(drafted.0, plain.0);
    assert!(drafted.1.accepted() > 20, "{:?}", drafted.1);
}

/// While a sequence grows by the tokens of a reference, each first draft is the most probable token
/// of the reference's row, whatever drafts were run before and dropped.
#[test]
fn a_block_drafts_the_tokens_of_its_reference() {
    for family in ["deepseek2-nextn", "glm4moe", "qwen35"] {
        let of = |end: &str| data(&format!("families/{family}-{end}"));
        let (tokens, expected) = (ids(&of("tokens.txt")), npy(&of("q8_0-mtp-logits.npy")));
        let vocabulary = expected.len() / tokens.len();
        let mut drafted = 0;
        // Prompts of one step: the hidden row before a further one would count as 0. Drafts that
        // are never kept end soon, so each prompt begins with none.
        for begin in [10, 17, 24, 31] {
            let prompt = &tokens[..begin];
            let mut e = batcher(&format!("{family}-q8_0"), (2, 6), Some(DraftOrigin::Block));
            let id = e.add(prompt, SequenceOptions::default()).expect("a prompt");
            for (position, &token) in tokens.iter().enumerate().skip(begin) {
                // A prompt may take several steps.
                while e.step(&mut |_, _| None).expect("a step").is_empty() {}
                // The draft that would follow the reference's token before this one. Once drafts
                // are not worth their time, the hidden rows of some tokens are gone.
                match e.next_draft(id) {
                    None if position > begin => break,
                    None => {}
                    Some(draft) => {
                        let row = &expected[(position - 1) * vocabulary..][..vocabulary];
                        assert_eq!(draft, argmax(row) as u32, "{family} at {position}");
                        drafted += 1;
                    }
                }
                e.push(id, token);
            }
        }
        assert!(drafted >= 8, "{family}: {drafted} drafts");
    }
}

/// The same for an assistant; its reference has drafts after some positions.
#[test]
fn an_assistant_drafts_the_tokens_of_its_reference() {
    let of = |end: &str| data(&format!("families/gemma4-{end}"));
    let expected = npy(&of("assistant-q8_0-clustered-logits.npy"));
    let (tokens, mut drafted) = (ids(&of("tokens.txt")), 0);
    for (nth, &position) in POSITIONS.iter().enumerate() {
        let mut e = batcher("gemma4-q8_0", (2, 6), Some(DraftOrigin::Block));
        let begin = position.saturating_sub(3).max(1);
        let prompt = &tokens[..begin];
        let id = e.add(prompt, SequenceOptions::default()).expect("a prompt");
        for (at, &token) in tokens.iter().enumerate().take(position + 2).skip(begin) {
            while e.step(&mut |_, _| None).expect("a step").is_empty() {}
            // The draft after the token at `position`.
            if at == position + 1
                && let Some(draft) = e.next_draft(id)
            {
                let row = &expected[nth * DRAFTS * 512..][..512];
                assert_eq!(draft, argmax(row) as u32, "at {position}");
                drafted += 1;
            }
            e.push(id, token);
        }
    }
    assert!(drafted >= 10, "{drafted} drafts");
}

/// A model that drafts for itself is right but where rounding decides.
#[test]
fn drafts_of_a_model_change_no_token() {
    let families = ["llama-q4_k_m", "qwen3moe-q8_0"];
    let kept = families.map(|family| kept_drafts(family, DraftOrigin::Model));
    assert!(
        kept.iter().all(|&kept| kept > 40),
        "{kept:?} drafts were kept"
    );
}

/// Steps are measured before the first request, and leave nothing in its texts.
#[test]
fn times_are_known_before_the_first_request() {
    for family in ["deepseek2-nextn-q8_0", "gemma4-q8_0", "qwen35-q8_0"] {
        let sources = DraftSources {
            ngrams: true,
            drafter: Some(Drafter::Block),
            assumes_times: false,
        };
        let e = Batcher::new(engine(family, CacheType::F32, 2, 6));
        let mut e = e.with_speculation(sources);
        e.measure_step_times(&|_, _| ()).expect("steps");
        let known = e.step_times().map(|of| of.into_keys().collect::<Vec<_>>());
        assert_eq!(known, [vec![1, 2, 4, 8], vec![1]], "{family}");
        assert_eq!(e.speculation(), SpeculationStats::default());
        let name = family.rsplit_once('-').map_or(family, |of| of.0);
        let tokens = ids(&data(&format!("families/{name}-tokens.txt")));
        let prompts = [repeating(&tokens)];
        let (measured, _) = run(e, &prompts, 0.0, SequenceOptions::default());
        let (plain, _) = answers(family, 0.0, None, 1);
        assert_eq!(measured, plain, "{family}");
    }
}

/// The block that was trained for the demo model drafts at least a third of an answer of 60 tokens.
/// Up to six drafts are made at a time here, so that many follow one that was refused.
#[test]
fn the_trained_block_drafts_what_the_demo_model_says() {
    let asset = |name: &str| Gguf::open(asset(name)).expect("a GGUF file");
    let mut file = asset("demo-glm-Q4_0.gguf");
    let tokenizer = language::tokenizer(file.metadata()).expect("a tokenizer");
    let block = asset("draft-blocks/demo-glm-Q4_0.gguf");
    file.attach_draft_block(block).expect("a block");
    let options = Options {
        quick: true,
        ..Options::default()
    };
    let settings = Settings {
        context: Some(256),
        chunk: 32,
        drafts: 6,
        draft_block: true,
        ..Settings::default()
    };
    let opened = open("cpu", &options).expect("a device");
    let engine = Engine::load(&file, opened, settings, &|_| ()).expect("a model");
    let e = Batcher::new(engine).with_speculation(DraftSources {
        ngrams: false,
        drafter: Some(Drafter::Block),
        assumes_times: true,
    });
    let asked = "[gMASK]<sop><|user|>\nTell me a story about a fox.<|assistant|>\n";
    let prompt = tokenizer.encode(asked, false, true);
    let (_, stats) = run(e, &[prompt], 0.0, SequenceOptions::default());
    let (kept, drafted) = (stats.accepted(), stats.drafted());
    println!("{kept} of {drafted} drafts were kept");
    assert!(kept >= 20, "{kept} of {drafted}");
}
