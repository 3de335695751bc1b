//! Sliding-window layers with a page pool read as a ring buffer, without block tables: the same
//! logits as with every position cached and as with block tables, sequences that are truncated and
//! continued, and no more bytes than the windows need.

use crate::common::forward;
use crate::conversation_support::{ask, exact_prefix, fresh};
use crate::parity_support::tables::{data, rms};
use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::{self, Logits};
use gristmill_llm::engine::{
    CompiledModel, Engine, MemoryEstimate, Pages, Settings, TokenRun, Weights, cache_rows,
};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sched::{BLOCK, Batcher, Reuse};

/// Maximum difference of logits between runs with different chunk boundaries, in standard
/// deviations: arithmetic is exact except for the order of sums.
const NEAR: f64 = 1e-4;
/// Families with windows, of 16 positions in these files.
const FILES: [&str; 5] = [
    "gemma2-q8_0",
    "gemma3-q8_0",
    "gemma4-q8_0",
    "gemma4-moe-q8_0",
    "gpt-oss-mxfp4",
];
const WINDOW: usize = 16;
/// Tokens of a step: a ring buffer of six pages.
const CHUNK: usize = 32;
const RING: usize = 6;
/// Positions of a page.
const PAGE: usize = arch::Options::PAGE;

fn exact() -> Options {
    Options {
        precision: Precision::Exact,
        quick: true,
        ..Options::default()
    }
}

fn settings(context: usize, chunk: usize, cache: CacheType) -> Settings {
    Settings {
        context: Some(context),
        cache,
        chunk,
        ..Settings::default()
    }
}

fn engine(name: &str, settings: Settings) -> Engine {
    engine_on("cpu", name, settings)
}

fn engine_on(device: &str, name: &str, settings: Settings) -> Engine {
    let file = Gguf::open(data(&format!("families/{name}.gguf"))).expect("a GGUF file");
    let opened = open(device, &exact()).expect("a device");
    Engine::load(&file, opened, settings, &|_| ()).expect("a model")
}

fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (i * 37 + seed * 101 + i * i % 13) % 300)
        .collect()
}

#[test]
fn many_windows_in_chunks_and_stepwise_are_as_in_a_cache_of_every_position() {
    many_windows("cpu");
}

/// On the first CUDA device, as on a CPU.
#[cfg(feature = "cuda-tests")]
#[test]
fn many_windows_on_cuda() {
    many_windows("cuda");
}

/// On the first adapter, which may be a software one.
#[cfg(feature = "wgpu")]
#[test]
fn many_windows_on_wgpu() {
    many_windows("wgpu");
}

/// Returns logits of all tokens in steps of at most `most`, with the ring buffer
/// starting at page `begin`.
fn in_ring(
    engine: &mut Engine,
    tokens: &[u32],
    most: usize,
    begin: u32,
    contiguous: bool,
) -> Vec<f32> {
    let all: Vec<u32> = (0..tokens.len().div_ceil(PAGE) as u32).collect();
    let windows: Vec<u32> = all
        .iter()
        .map(|block| (begin + block) % RING as u32)
        .collect();
    let pages = Pages {
        all: &all,
        windows: &windows,
        state: 0,
        ..Pages::default()
    };
    let mut out = Vec::new();
    for (nth, tokens) in tokens.chunks(most).enumerate() {
        let run = TokenRun {
            tokens,
            position: nth * most,
            pages,
            contiguous,
        };
        out.extend(engine.logits(run, Logits::All).expect("logits"));
    }
    out
}

fn many_windows(device: &str) {
    // The ring buffer is filled twice.
    let tokens = text(3, 800);
    for name in FILES {
        let caches: &[CacheType] = if name == FILES[0] {
            &[CacheType::F32, CacheType::Int8]
        } else {
            &[CacheType::F32]
        };
        for &cache in caches {
            // With long steps and four sequences the windows need as many pages as the pool, so
            // there is no window pool.
            let whole = Settings {
                parallel: 4,
                ..settings(tokens.len(), 3296, cache)
            };
            let mut whole = engine_on(device, name, whole);
            assert_eq!(whole.cache().window_pages(), None);
            let expected = forward(&mut whole, &tokens, 0, true);
            let mut ring = engine_on(device, name, settings(tokens.len(), CHUNK, cache));
            assert_eq!(ring.cache().window_pages(), Some(RING));
            // With an int8 cache a value near a rounding boundary goes either way.
            let most = if cache == CacheType::F32 { NEAR } else { 0.05 };
            let all: Vec<Vec<f32>> = [
                (CHUNK, 0, true),
                (1, 0, true),
                (CHUNK, 4, true),
                (7, 3, true),
                (CHUNK, 2, false),
            ]
            .into_iter()
            .map(|(most, begin, contiguous)| in_ring(&mut ring, &tokens, most, begin, contiguous))
            .collect();
            let errors: Vec<f64> = all.iter().map(|found| rms(found, &expected)).collect();
            println!("{name}, {cache:?}: {errors:?}");
            assert!(
                errors.iter().all(|&e| e < most),
                "{name}, {cache:?}: {errors:?}"
            );
        }
    }
}

#[test]
fn a_cache_has_the_bytes_of_its_windows() {
    for name in FILES {
        let file = Gguf::open(data(&format!("families/{name}.gguf"))).expect("a GGUF file");
        let model = arch::load(file.metadata(), &file).expect("a model");
        let (all, within) = (
            model.cache_row_bytes(CacheType::F16),
            model.window_row_bytes(CacheType::F16),
        );
        assert!(within > 0 && within < all && model.window() == Some(WINDOW));
        let long = engine(name, settings(4000, CHUNK, CacheType::F16));
        assert_eq!(
            long.cache().sequence_bytes(4000),
            4000 * (all - within) + RING * PAGE * within,
            "{name}"
        );
        assert_eq!(long.cache().sequence_bytes(40), 40 * all, "{name}");
        // The estimate before loading: a longer context adds rows of the full-attention layers
        // and of RoPE tables.
        let estimate = |context| {
            MemoryEstimate::new(
                &file,
                &settings(context, CHUNK, CacheType::F16),
                u64::MAX / 2,
            )
            .expect("one")
        };
        let turns: usize = model.rope_tables(4000).iter().map(|t| t.row_bytes()).sum();
        let more = (cache_rows(4000, CHUNK) - cache_rows(400, CHUNK)) * (all - within + turns);
        assert_eq!(
            (estimate(4000).non_weight_bytes - estimate(400).non_weight_bytes) as usize,
            more,
            "{name}"
        );
        // The allocated memory equals the estimate with intermediates, except for block tables.
        let opened = open("cpu", &exact()).expect("a device");
        let none = Weights::default();
        let compiled = CompiledModel::new(
            &file,
            opened,
            settings(4000, CHUNK, CacheType::F16),
            &none,
            &|_| (),
        )
        .expect("compiled");
        let tables = long.memory_bytes() - compiled.memory(&none);
        assert!(tables < 4096, "{name}: {tables} bytes that are not counted");
        let intermediates =
            long.memory_bytes() - long.weights().bytes() - estimate(4000).non_weight_bytes;
        assert!(
            intermediates < 4 << 20,
            "{name}: {intermediates} bytes that the estimate does not know"
        );
    }
}

/// Returns a batcher of one sequence in exact arithmetic.
fn batcher(name: &str) -> Batcher {
    let batcher = Batcher::new(engine(name, settings(600, CHUNK, CacheType::F32)));
    assert_eq!(batcher.engine().cache().window_pages(), Some(RING));
    batcher
}

fn near(logits: &[f32], scratch: &mut Batcher, prompt: &[u32]) {
    let error = rms(logits, &fresh(scratch, prompt, Reuse::Any, 0).logits);
    assert!(error < NEAR, "{} tokens: rms {error}", prompt.len());
}

#[test]
fn conversations_go_on_where_their_windows_are_there() {
    for name in ["gemma3-q8_0", "gpt-oss-mxfp4"] {
        let (mut batcher, mut scratch) = (batcher(name), batcher(name));
        let first = text(1, 200);
        let said = ask(&mut batcher, &first, Reuse::Any, 12).answer;
        // The conversation continues: all tokens that were run are reused.
        let next = [&first[..], &said, &text(2, 20)].concat();
        let asked = ask(&mut batcher, &next, Reuse::Any, 0);
        assert!(asked.prefill.reused >= 211, "{name}: {:?}", asked.prefill);
        near(&asked.logits, &mut scratch, &next);
        // Truncated by a few tokens, less than the cached window pages cover.
        let cut = [&next[..next.len() - 10], &text(4, 9)].concat();
        let asked = ask(&mut batcher, &cut, Reuse::Any, 0);
        assert_eq!(asked.prefill.reused, next.len() - 10, "{name}");
        near(&asked.logits, &mut scratch, &cut);
        // Truncated by many: the window pages there may be evicted.
        let cut = [&first[..100], &text(5, 30)].concat();
        let asked = ask(&mut batcher, &cut, Reuse::Any, 0);
        assert!(asked.prefill.reused <= 100, "{name}: {:?}", asked.prefill);
        near(&asked.logits, &mut scratch, &cut);
        // Another conversation, and the first again.
        ask(&mut batcher, &text(7, 150), Reuse::Any, 0);
        let asked = ask(&mut batcher, &next, Reuse::Any, 0);
        println!("{name}: {:?}", asked.prefill);
        near(&asked.logits, &mut scratch, &next);
    }
}

#[test]
fn an_exact_prefix_changes_no_bit() {
    let (mut batcher, mut scratch) = (batcher("gemma3-q8_0"), batcher("gemma3-q8_0"));
    let text = text(1, 400);
    for len in [20, BLOCK + 1, 101, 370] {
        exact_prefix(
            [&mut batcher, &mut scratch],
            &text,
            len,
            &[1, BLOCK, len / 2, len],
            10,
        );
    }
}

#[test]
fn the_same_prompt_has_the_same_answer() {
    // An answer longer than the ring buffer: the window at the prompt's end is evicted.
    for length in [12, RING * PAGE + 40] {
        let mut batcher = batcher("gemma3-q8_0");
        let prompt = text(5, 150);
        let first = ask(&mut batcher, &prompt, Reuse::Exact, length);
        let again = ask(&mut batcher, &prompt, Reuse::Exact, length);
        assert!(again.logits == first.logits, "{:?}", again.prefill);
        assert_eq!(again.answer, first.answer);
    }
}

#[test]
fn a_reset_batcher_begins_anew() {
    let (mut batcher, mut scratch) = (batcher("gemma3-q8_0"), batcher("gemma3-q8_0"));
    ask(&mut batcher, &text(1, 300), Reuse::Any, 0);
    batcher.reset();
    let prompt = text(2, 90);
    let asked = ask(&mut batcher, &prompt, Reuse::Any, 2);
    assert_eq!(asked.prefill.reused, 0);
    near(&asked.logits, &mut scratch, &prompt);
    let next = [&prompt[..], &[3]].concat();
    let asked = ask(&mut batcher, &next, Reuse::Any, 0);
    near(&asked.logits, &mut scratch, &next);
}
