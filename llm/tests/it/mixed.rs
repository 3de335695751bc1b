//! Mixed batches: prefill chunks and decode rows in one step match reference logits of other
//! engines, and KV rows are bit-identical whatever else is in the batch.

use crate::common::devices;
use crate::parity_support::tables::{data, ids, npy, rms};
use gristmill_backend::{Options, Precision};
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::{self, Logits};
use gristmill_llm::engine::{Chunk, DecodeRow, Engine, Pages, Settings, Step, TokenSource};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::RowSampling;

/// RMS of the difference, in standard deviations of the reference.
const EXACT: f64 = 1e-3;
/// Context in tokens; it determines the frequency factors of `phi3`.
const CONTEXT: usize = 256;
/// Positions of a page.
const PAGE: usize = arch::Options::PAGE;
/// Sequences that share steps.
const OTHERS: usize = 3;
/// Maximum sequences of a step: their windows need as many pages as the pool, so there is no window
/// pool, which would disable mixed batches.
const PARALLEL: usize = 8;

fn engine(file: &Gguf, options: &Options, cache: CacheType) -> Engine {
    engine_on("cpu", file, options, cache)
}

fn engine_on(device: &str, file: &Gguf, options: &Options, cache: CacheType) -> Engine {
    let (opened, placement) = devices(device, options);
    let settings = Settings {
        context: Some(CONTEXT),
        cache,
        chunk: 128,
        parallel: PARALLEL,
        placement,
        ..Settings::default()
    };
    Engine::load(file, opened, settings, &|_| ()).expect("a model")
}

/// Returns the pages of a sequence for a whole context; no two consecutive blocks are neighbours.
fn pages(sequence: usize) -> Vec<u32> {
    (0..CONTEXT / PAGE)
        .map(|block| (block * OTHERS + (sequence + block) % OTHERS) as u32)
        .collect()
}

fn up_to(pages: &[u32], position: usize) -> Pages<'_> {
    pages[..position / PAGE + 1].into()
}

/// Returns a decode row of the sequence with these pages.
fn row(token: u32, position: usize, pages: &[u32]) -> DecodeRow<'_> {
    DecodeRow {
        token: TokenSource::Token(token),
        position,
        pages: up_to(pages, position),
        sampling: RowSampling::greedy(),
    }
}

/// Runs a chunk and these decode rows in one step.
fn step(engine: &mut Engine, chunk: Chunk, rows: &[DecodeRow]) {
    engine
        .run(&Step {
            chunk: Some(chunk),
            rows,
            ..Step::default()
        })
        .expect("a step");
}

/// Runs `tokens` as sequence 0 in chunks that end at `ends`, while other sequences decode the same
/// tokens from the start. Returns the logits after each chunk, and after each token of the others.
fn run(
    engine: &mut Engine,
    tokens: &[u32],
    ends: &[usize],
    others: usize,
) -> [Vec<(usize, Vec<f32>)>; 2] {
    let of: Vec<Vec<u32>> = (0..=others).map(pages).collect();
    let (mut found, mut begin, mut logits) = ([Vec::new(), Vec::new()], 0, Vec::new());
    for (nth, &end) in ends.iter().enumerate() {
        let rows = (1..=others).map(|s| row(tokens[nth], nth, &of[s]));
        let rows: Vec<DecodeRow> = rows.collect();
        let pages = up_to(&of[0], end - 1);
        let (tokens, logits_of) = (&tokens[begin..end], Logits::Last);
        step(
            engine,
            Chunk {
                tokens,
                position: begin,
                pages,
                exact: false,
                logits: logits_of,
                fills_drafts: false,
            },
            &rows,
        );
        for row in 0..=others {
            engine.row_logits(row, &mut logits).expect("logits");
            let at = if row == 0 { end - 1 } else { nth };
            found[usize::from(row > 0)].push((at, logits.clone()));
        }
        begin = end;
    }
    found
}

fn check(family: &str, quant: &str) {
    check_on("cpu", family, quant);
}

#[test]
fn mixed_steps_of_models_on_two_devices() {
    for family in ["glm4moe", "deepseek2"] {
        check_on("cpu+cpu", family, "q8_0");
    }
}

fn check_on(device: &str, family: &str, quant: &str) {
    let of = |end: &str| data(&format!("families/{family}-{end}"));
    let file = Gguf::open(of(&format!("{quant}.gguf"))).expect("a GGUF file");
    let (expected, tokens) = (
        npy(&of(&format!("{quant}-logits.npy"))),
        ids(&of("tokens.txt")),
    );
    let vocabulary = expected.len() / tokens.len();
    let near = |what: &str, found: &[(usize, Vec<f32>)]| {
        for (at, row) in found {
            let error = rms(row, &expected[at * vocabulary..(at + 1) * vocabulary]);
            assert!(error <= EXACT, "{family}, {what} at {at}: rms {error}");
        }
    };
    let mut e = engine_on(
        device,
        &file,
        &Options {
            precision: Precision::Exact,
            quick: true,
            ..Options::default()
        },
        CacheType::F32,
    );
    let ends = [1, 40, 70, 71, tokens.len()];
    for others in [0, 1, OTHERS - 1] {
        let [piece, beside] = run(&mut e, &tokens, &ends, others);
        assert_eq!(
            (piece.len(), beside.len()),
            (ends.len(), others * ends.len())
        );
        near("a piece", &piece);
        near("a row beside it", &beside);
    }
}

crate::parity_support::of_families_over_pools!(check, OVER_POOLS);

/// Returns the logits after a prompt, as bits; its first tokens ran as one chunk
/// with `others` decode rows.
fn behind(engine: &mut Engine, tokens: &[u32], others: usize) -> Vec<u32> {
    let of: Vec<Vec<u32>> = (0..=others).map(pages).collect();
    let (first, rest) = tokens.split_at(64);
    let rows: Vec<DecodeRow> = (1..=others).map(|s| row(first[s], 0, &of[s])).collect();
    let pages = up_to(&of[0], 63);
    step(
        engine,
        Chunk {
            tokens: first,
            position: 0,
            pages,
            exact: true,
            logits: Logits::None,
            fills_drafts: false,
        },
        &rows,
    );
    let pages = up_to(&of[0], tokens.len() - 1);
    step(
        engine,
        Chunk {
            tokens: rest,
            position: 64,
            pages,
            exact: false,
            logits: Logits::Last,
            fills_drafts: false,
        },
        &[],
    );
    let mut logits = Vec::new();
    engine.row_logits(0, &mut logits).expect("logits");
    logits.into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_piece_leaves_the_same_bits_whatever_is_beside_it() {
    for (family, quant) in [
        ("llama", "q4_k_m"),
        ("qwen3moe", "q8_0"),
        ("deepseek2", "q8_0"),
        ("gemma4", "q8_0"),
    ] {
        let file =
            Gguf::open(data(&format!("families/{family}-{quant}.gguf"))).expect("a GGUF file");
        let tokens = ids(&data(&format!("families/{family}-tokens.txt")));
        // Int8 caches have separate kernels; one family is enough.
        for &cache in if family == "llama" {
            &[CacheType::F16, CacheType::Int8][..]
        } else {
            &[CacheType::F16]
        } {
            let mut e = engine(
                &file,
                &Options {
                    quick: true,
                    ..Options::default()
                },
                cache,
            );
            // Latent attention with separate key matrices runs chunks in steps of their
            // own on some machines.
            if !e.supports_mixed_batches() && family == "deepseek2" {
                continue;
            }
            let alone = behind(&mut e, &tokens[..80], 0);
            for others in 1..OTHERS {
                assert!(
                    behind(&mut e, &tokens[..80], others) == alone,
                    "{family}, {cache:?}, {others} others"
                );
            }
        }
    }
}
