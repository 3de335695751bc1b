//! Batched decode steps over a page pool match reference logits of other engines, for any
//! batch and any pages.

use crate::common::{devices, forward};
use crate::parity_support::tables::{argmax, data, ids, npy, rms};
use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::{self, Logits};
use gristmill_llm::engine::{
    Chunk, DecodeRow, Engine, Pages, Settings, Step, TokenRun, TokenSource,
};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::RowSampling;

/// RMS of the difference, in standard deviations of the reference.
const EXACT: f64 = 1e-3;
/// Context in tokens; it determines the frequency factors of `phi3`.
const CONTEXT: usize = 256;
/// Positions of a page.
const PAGE: usize = arch::Options::PAGE;

fn exact() -> Options {
    Options {
        precision: Precision::Exact,
        quick: true,
        ..Options::default()
    }
}

/// Returns an engine with batches of up to `parallel`. With eight sequences the windows need as
/// many pages as the pool, so there is no window pool.
fn engine(
    device: &str,
    file: &Gguf,
    options: Options,
    cache: CacheType,
    parallel: usize,
) -> Engine {
    let (opened, placement) = devices(device, &options);
    let settings = Settings {
        context: Some(CONTEXT),
        cache,
        chunk: 128,
        parallel,
        placement,
        ..Settings::default()
    };
    Engine::load(file, opened, settings, &|_| ()).expect("a model")
}

/// Returns pages for sequences of `tokens` tokens; no two consecutive blocks are neighbours.
fn pages(engine: &Engine, sequences: usize, tokens: usize) -> Vec<Vec<u32>> {
    let all = engine.cache().pages() as u32;
    let each = tokens.div_ceil(PAGE);
    assert!(sequences * each <= all as usize);
    let page = |i: usize| (i as u32 * 7 + 3) % all;
    assert!(!all.is_multiple_of(7), "7 goes round all {all} pages");
    (0..sequences)
        .map(|s| (0..each).map(|block| page(s * each + block)).collect())
        .collect()
}

/// Returns the logits of consecutive tokens of a sequence, read through a block table.
fn paged(engine: &mut Engine, pages: &[u32], tokens: &[u32], position: usize) -> Vec<f32> {
    let run = TokenRun {
        tokens,
        position,
        pages: pages.into(),
        contiguous: false,
    };
    engine.logits(run, Logits::All).expect("logits")
}

/// Runs `tokens` as several sequences, each `late` steps after the previous one, and returns
/// the logits of each.
fn staggered(engine: &mut Engine, tokens: &[u32], sequences: usize, late: usize) -> Vec<Vec<f32>> {
    let pages = pages(engine, sequences, tokens.len());
    let mut found = vec![Vec::new(); sequences];
    let mut row = Vec::new();
    for step in 0..tokens.len() + late * (sequences - 1) {
        let at = |s: usize| step.checked_sub(late * s).filter(|&p| p < tokens.len());
        let running: Vec<usize> = (0..sequences).filter(|&s| at(s).is_some()).collect();
        let rows: Vec<DecodeRow> = running
            .iter()
            .map(|&s| {
                let position = at(s).expect("a running one");
                let all = &pages[s][..position / PAGE + 1];
                let pages = Pages {
                    all,
                    state: s as u32,
                    ..Pages::default()
                };
                DecodeRow {
                    token: TokenSource::Token(tokens[position]),
                    position,
                    pages,
                    sampling: RowSampling::greedy(),
                }
            })
            .collect();
        let chosen = engine
            .run(&Step {
                rows: &rows,
                ..Step::default()
            })
            .expect("a step")
            .chosen;
        for (i, &s) in running.iter().enumerate() {
            engine.row_logits(i, &mut row).expect("logits");
            assert_eq!(
                chosen[i],
                Some(argmax(&row) as u32),
                "step {step}, sequence {s}"
            );
            found[s].extend_from_slice(&row);
        }
    }
    found
}

fn check(family: &str, quant: &str) {
    check_on("cpu", family, quant);
}

#[test]
fn batches_of_models_on_two_devices() {
    for family in ["qwen3moe", "deepseek2", "gemma4-moe", "qwen35moe"] {
        check_on("cpu+cpu", family, "q8_0");
    }
}

/// Checks a family on one device.
fn check_on(device: &str, family: &str, quant: &str) {
    let of = |end: &str| data(&format!("families/{family}-{end}"));
    let file = Gguf::open(of(&format!("{quant}.gguf"))).expect("a GGUF file");
    let (expected, tokens) = (
        npy(&of(&format!("{quant}-logits.npy"))),
        ids(&of("tokens.txt")),
    );
    let near = |what: &str, found: &[f32]| {
        let error = rms(found, &expected);
        println!("{family} on {device}, {what}: rms {error:.2e}");
        assert!(error <= EXACT, "{family} on {device}, {what}: rms {error}");
    };
    let mut e = engine(device, &file, exact(), CacheType::F32, 8);
    assert_eq!(e.cache().window_pages(), None);
    // One sequence, in prefill chunks.
    let pages = pages(&e, 1, tokens.len());
    near("one piece", &paged(&mut e, &pages[0], &tokens, 0));
    let mut found = paged(&mut e, &pages[0], &tokens[..70], 0);
    found.extend(paged(&mut e, &pages[0], &tokens[70..71], 70));
    found.extend(paged(&mut e, &pages[0], &tokens[71..], 71));
    near("three pieces", &found);
    for (s, found) in staggered(&mut e, &tokens, 3, 9).iter().enumerate() {
        near(&format!("row {s} of three"), found);
    }
}

crate::parity_support::of_families_over_pools!(check, OVER_POOLS);

/// Families with recurrent states: their chunks have separate steps.
const WITH_STATES: [(&str, &str); 2] = [("qwen35", "q8_0"), ("qwen35moe", "q8_0")];

#[test]
fn qwen35_with_states() {
    WITH_STATES
        .iter()
        .for_each(|(family, quant)| check(family, quant));
}

/// On the first adapter, which may be a software one.
#[cfg(feature = "wgpu")]
#[test]
fn sequences_on_wgpu() {
    [("llama", "q4_k_m"), ("deepseek2", "q8_0")]
        .iter()
        .for_each(|(family, quant)| check_on("wgpu", family, quant));
}

/// On a GPU in f32; and with f16 products, where batched rows are as close as prefill chunks, which
/// multiply the same numbers.
#[cfg(feature = "cuda-tests")]
#[test]
fn sequences_on_cuda() {
    OVER_POOLS
        .iter()
        .chain(&WITH_STATES)
        .for_each(|(family, quant)| check_on("cuda", family, quant));
    for (family, quant) in [
        ("llama", "q4_k_m"),
        ("qwen3", "q8_0"),
        ("qwen3moe", "q8_0"),
        ("deepseek2", "q8_0"),
    ] {
        let of = |end: &str| data(&format!("families/{family}-{end}"));
        let file = Gguf::open(of(&format!("{quant}.gguf"))).expect("a GGUF file");
        let (expected, tokens) = (
            npy(&of(&format!("{quant}-logits.npy"))),
            ids(&of("tokens.txt")),
        );
        let halves = Options {
            quick: true,
            ..Options::default()
        };
        let mut e = engine("cuda", &file, halves, CacheType::F16, 5);
        let pages = pages(&e, 1, tokens.len());
        let piece = rms(&paged(&mut e, &pages[0], &tokens, 0), &expected);
        for (s, found) in staggered(&mut e, &tokens, 5, 0).iter().enumerate() {
            let error = rms(found, &expected);
            println!(
                "{family} on cuda in halves, row {s} of five: rms {error:.2e}, a piece {piece:.2e}"
            );
            assert!(
                error <= 1.5 * piece,
                "{family} on cuda in halves, row {s} of five: rms {error}, a piece {piece}"
            );
        }
    }
}

/// With f16 and int8 caches a chunk read through a block table has the logits of a contiguous one.
///
/// They are bit-identical if attention has a single form. Batched rows sum in another order: they
/// are as close as f16 allows, or as one int8 code (of ±127) that rounds the other way.
#[test]
fn caches_of_halves_and_of_bytes_have_pages() {
    for (family, quant) in [("llama", "q4_k_m"), ("deepseek2", "q8_0")] {
        let file =
            Gguf::open(data(&format!("families/{family}-{quant}.gguf"))).expect("a GGUF file");
        let tokens = ids(&data(&format!("families/{family}-tokens.txt")));
        for cache in [
            CacheType::F16,
            CacheType::Int8,
            CacheType::Int4,
            CacheType::Fp8,
        ] {
            let settings = Settings {
                context: Some(CONTEXT),
                cache,
                chunk: 128,
                ..Settings::default()
            };
            let opened = open("cpu", &exact()).expect("a device");
            let mut alone = Engine::load(&file, opened, settings, &|_| ()).expect("a model");
            let expected = forward(&mut alone, &tokens, 0, true);
            let mut e = engine("cpu", &file, exact(), cache, 2);
            let pages = pages(&e, 1, tokens.len());
            let piece = paged(&mut e, &pages[0], &tokens, 0);
            let found = staggered(&mut e, &tokens, 2, 5);
            let errors: Vec<f64> = found.iter().map(|found| rms(found, &expected)).collect();
            println!("{family}, {cache:?}: {errors:?}");
            let most = match cache {
                CacheType::Int8 => 2.0 / 127.0,
                CacheType::Int4 => 2.0 / 7.0,
                CacheType::Fp8 => 2.0 / 16.0,
                _ => EXACT,
            };
            // Latent attention has another form with block tables than for contiguous pages.
            let apart = rms(&piece, &expected);
            assert!(
                if family == "deepseek2" {
                    apart < most
                } else {
                    piece == expected
                },
                "{family}, {:?}: {apart}",
                cache
            );
            assert!(
                errors.iter().all(|&e| e < most),
                "{family}, {:?}: {errors:?}",
                cache
            );
        }
    }
}

#[test]
fn invalid_steps_are_refused() {
    let file = Gguf::open(data("families/llama-q4_k_m.gguf")).expect("a GGUF file");
    let mut e = engine("cpu", &file, exact(), CacheType::F32, 2);
    let page = e.cache().pages() as u32;
    fn row(position: usize, pages: &[u32]) -> DecodeRow<'_> {
        DecodeRow {
            token: TokenSource::Token(1),
            position,
            pages: pages.into(),
            sampling: RowSampling::greedy(),
        }
    }
    let mut refused = |rows: &[DecodeRow]| {
        e.run(&Step {
            rows,
            ..Step::default()
        })
        .expect_err("no step")
        .to_string()
    };
    assert!(refused(&[]).contains("no tokens"));
    assert!(refused(&[row(0, &[])]).contains("pages"));
    assert!(refused(&[row(PAGE, &[0])]).contains("pages"));
    assert!(refused(&[row(0, &[page])]).contains("pages"));
    assert!(refused(&[row(CONTEXT, &[0, 1, 2, 3, 4])]).contains("full"));
    assert!(refused(&[row(0, &[0]), row(0, &[1]), row(0, &[2])]).contains("takes 2"));
    assert!(
        refused(&[DecodeRow {
            token: TokenSource::Token(512),
            ..row(0, &[0])
        }])
        .contains("token 512")
    );
    // On an engine for one sequence.
    let mut alone = Engine::load(
        &file,
        open("cpu", &exact()).expect("a device"),
        Settings::default(),
        &|_| (),
    )
    .expect("a model");
    let rows = [row(0, &[0]), row(0, &[1])];
    assert!(
        alone
            .run(&Step {
                rows: &rows[..1],
                ..Step::default()
            })
            .is_ok()
    );
    let chunk = Chunk {
        tokens: &[1, 2],
        position: 0,
        pages: [2][..].into(),
        exact: false,
        logits: Logits::Last,
        fills_drafts: false,
    };
    for step in [
        Step {
            rows: &rows,
            ..Step::default()
        },
        Step {
            chunk: Some(chunk),
            rows: &rows[..1],
            ..Step::default()
        },
    ] {
        assert!(
            alone
                .run(&step)
                .expect_err("no step")
                .to_string()
                .contains("sequences"),
            "{step:?}"
        );
    }
}
