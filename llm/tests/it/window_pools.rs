//! Sliding-window layers with a smaller page pool: logits equal those with every position cached
//! even if all rows outside the windows are NaN, answers do not depend on the batch or on evicted
//! window pages, and the pool takes no more bytes than planned.

use crate::common::forward;
use crate::conversation_support::apart;
use crate::parity_support::tables::{data, rms};
use crate::recording::{self, Recording};
use gristmill_backend::{Opened, Options, Precision, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::{self, Logits};
use gristmill_llm::engine::{
    CompiledModel, DecodeRow, Engine, MemoryEstimate, Pages, Settings, Step, TokenRun, TokenSource,
    Weights,
};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::{RowSampling, Sampler, SamplingParams};
use gristmill_llm::sched::{Batcher, Reuse, SequenceId, SequenceOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

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
/// Tokens of a step, and of context: three sequences have 48 pages and 14 window pages.
const CHUNK: usize = 32;
const CONTEXT: usize = 1024;
const SEQUENCES: usize = 3;
/// Positions of a page.
const PAGE: usize = arch::Options::PAGE;

fn exact() -> Options {
    Options {
        precision: Precision::Exact,
        quick: true,
        ..Options::default()
    }
}

fn file(name: &str) -> Gguf {
    Gguf::open(data(&format!("families/{name}.gguf"))).expect("a GGUF file")
}

fn settings(cache: CacheType, parallel: usize) -> Settings {
    Settings {
        context: Some(CONTEXT),
        cache,
        chunk: CHUNK,
        parallel,
        ..Settings::default()
    }
}

fn engine(name: &str, opened: Opened, cache: CacheType, parallel: usize) -> Engine {
    Engine::load(&file(name), opened, settings(cache, parallel), &|_| ()).expect("a model")
}

fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (i * 37 + seed * 101 + i * i % 13) % 300)
        .collect()
}

/// An engine with a window pool that can be filled with NaN.
struct Poisoned {
    engine: Engine,
    device: Recording,
    /// Bytes of a page of each cache tensor in sliding-window layers.
    planes: BTreeSet<usize>,
    windows: usize,
}

impl Poisoned {
    fn new(name: &str, cache: CacheType) -> Poisoned {
        let (opened, device) = recording::around(open("cpu", &exact()).expect("a device"));
        let engine = engine(name, opened, cache, SEQUENCES);
        let windows = engine.cache().window_pages().expect("a pool of windows");
        assert!(
            windows < engine.cache().pages(),
            "{name}: {windows} pages of windows"
        );
        let planes = engine.model().cache_tensors(cache).into_iter().flatten();
        let planes = planes
            .filter(|plane| plane.window().is_some())
            .map(|plane| plane.bytes(PAGE))
            .collect();
        Poisoned {
            engine,
            device,
            planes,
            windows,
        }
    }
    /// Fills every row of the window pool with NaN, except the rows `seen`.
    fn poison(&self, seen: &BTreeSet<(u32, usize)>) {
        let mut buffers = 0;
        for &page_bytes in &self.planes {
            for buffer in self.device.states(self.windows * page_bytes) {
                buffers += 1;
                let row = page_bytes / PAGE;
                for page in 0..self.windows as u32 {
                    for at in (0..PAGE).filter(|&at| !seen.contains(&(page, at))) {
                        let place = page as usize * page_bytes + at * row;
                        self.engine
                            .device()
                            .write(&buffer, place, &vec![0xff; row])
                            .expect("written");
                    }
                }
            }
        }
        assert!(buffers > 0, "no buffer is known as one of windows");
    }
}

/// Returns the window-pool rows of these positions.
fn rows(windows: &[u32], positions: Range<usize>) -> impl Iterator<Item = (u32, usize)> {
    positions.map(|p| (windows[p / PAGE], p % PAGE))
}

/// Returns the earlier positions that a token sees.
fn before(position: usize) -> Range<usize> {
    (position + 1).saturating_sub(WINDOW)..position
}

/// Returns pages of a sequence; consecutive blocks are not neighbours in the pool.
fn pages(engine: &Engine, sequence: usize, tokens: usize) -> [Vec<u32>; 2] {
    let (all, blocks) = (engine.cache().pages() as u32, tokens.div_ceil(PAGE));
    // Each sequence has a share of the window pool as a ring buffer.
    let ring = engine.cache().window_pages().expect("a pool of windows") / SEQUENCES;
    let own = |block: usize| ((sequence * CONTEXT / PAGE + block) as u32 * 7 + 3) % all;
    [
        (0..blocks).map(own).collect(),
        (0..blocks)
            .map(|block| (sequence * ring + block % ring) as u32)
            .collect(),
    ]
}

fn upto([all, windows]: &[Vec<u32>; 2], position: usize) -> Pages<'_> {
    let blocks = position / PAGE + 1;
    Pages {
        all: &all[..blocks],
        windows: &windows[..blocks],
        state: 0,
        ..Pages::default()
    }
}

/// Returns logits of a sequence in chunks of at most `most` tokens, with all other rows of
/// the window pool NaN.
fn in_pieces(of: &mut Poisoned, tokens: &[u32], most: usize) -> Vec<f32> {
    let pages = pages(&of.engine, 1, tokens.len());
    let (mut out, mut at) = (Vec::new(), 0);
    for piece in tokens.chunks(most) {
        of.poison(&rows(&pages[1], before(at)).collect());
        let pages = upto(&pages, at + piece.len() - 1);
        let run = TokenRun {
            tokens: piece,
            position: at,
            pages,
            contiguous: false,
        };
        out.extend(of.engine.logits(run, Logits::All).expect("logits"));
        at += piece.len();
    }
    out
}

/// Returns logits of several such sequences, each `late` steps after the previous one.
fn staggered(of: &mut Poisoned, tokens: &[u32], late: usize) -> Vec<Vec<f32>> {
    let pages: Vec<_> = (0..SEQUENCES)
        .map(|s| pages(&of.engine, s, tokens.len()))
        .collect();
    let (mut found, mut row) = (vec![Vec::new(); SEQUENCES], Vec::new());
    for step in 0..tokens.len() + late * (SEQUENCES - 1) {
        let at = |s: usize| step.checked_sub(late * s).filter(|&p| p < tokens.len());
        let running: Vec<(usize, usize)> =
            (0..SEQUENCES).filter_map(|s| Some((s, at(s)?))).collect();
        of.poison(
            &running
                .iter()
                .flat_map(|&(s, p)| rows(&pages[s][1], before(p)))
                .collect(),
        );
        let row_of = |&(s, position): &(usize, usize)| DecodeRow {
            token: TokenSource::Token(tokens[position]),
            position,
            pages: upto(&pages[s], position),
            sampling: RowSampling::greedy(),
        };
        let rows: Vec<DecodeRow> = running.iter().map(row_of).collect();
        of.engine
            .run(&Step {
                rows: &rows,
                ..Step::default()
            })
            .expect("a step");
        for (i, &(s, _)) in running.iter().enumerate() {
            of.engine.row_logits(i, &mut row).expect("logits");
            found[s].extend_from_slice(&row);
        }
    }
    found
}

#[test]
fn nothing_is_read_but_windows() {
    let tokens = text(3, 200);
    for name in FILES {
        let caches: &[CacheType] = if name == FILES[0] {
            &[CacheType::F32, CacheType::Int8]
        } else {
            &[CacheType::F32]
        };
        for &cache in caches {
            let mut alone = engine(name, open("cpu", &exact()).expect("a device"), cache, 1);
            let expected = forward(&mut alone, &tokens, 0, true);
            let mut of = Poisoned::new(name, cache);
            let mut all: Vec<Vec<f32>> = [CHUNK, 7, 1]
                .map(|most| in_pieces(&mut of, &tokens, most))
                .into();
            all.extend(staggered(&mut of, &tokens[..150], 19));
            // With an int8 cache a value near a rounding boundary goes either way.
            let most = if cache == CacheType::F32 { NEAR } else { 0.05 };
            let errors: Vec<f64> = all
                .iter()
                .map(|found| rms(found, &expected[..found.len()]))
                .collect();
            println!("{name}, {cache:?}: {errors:?}");
            assert!(
                errors.iter().all(|&e| e < most),
                "{name}, {cache:?}: {errors:?}"
            );
        }
    }
}

#[test]
fn a_pool_has_the_bytes_of_its_windows() {
    for name in FILES {
        let (file, settings) = (file(name), settings(CacheType::F16, SEQUENCES));
        let model = arch::load(file.metadata(), &file).expect("a model");
        let (all, within) = (
            model.cache_row_bytes(CacheType::F16),
            model.window_row_bytes(CacheType::F16),
        );
        let none = Weights::default();
        let opened = || open("cpu", &exact()).expect("a device");
        let compiled = CompiledModel::new(&file, opened(), settings.clone(), &none, &|_| ())
            .expect("compiled");
        let engine = Engine::load(&file, opened(), settings.clone(), &|_| ()).expect("a model");
        assert_eq!(
            (engine.cache().pages(), engine.cache().window_pages()),
            (48, Some(14)),
            "{name}"
        );
        // The allocated memory equals the estimate, except for block tables.
        let tables = engine.memory_bytes() - compiled.memory(&none);
        assert!(tables < 4096, "{name}: {tables} bytes that nobody counted");
        let estimate = MemoryEstimate::new(&file, &settings, u64::MAX / 2).expect("one");
        let besides = engine.memory_bytes() - engine.weights().bytes() - estimate.non_weight_bytes;
        assert!(
            besides < 4 << 20,
            "{name}: {besides} bytes that the estimate does not know"
        );
        let whole = Settings {
            parallel: 1,
            ..settings
        };
        let alone = MemoryEstimate::new(&file, &whole, u64::MAX / 2).expect("one");
        // One sequence takes six window pages.
        let rows = [
            2048 * (all - within) + 6 * PAGE * within,
            48 * PAGE * (all - within) + 14 * PAGE * within,
        ];
        assert_eq!(
            estimate.non_weight_bytes as i64 - alone.non_weight_bytes as i64,
            rows[1] as i64 - rows[0] as i64,
            "{name}"
        );
    }
}

#[test]
fn eight_contexts_of_real_shape_take_what_their_windows_do() {
    for (preset, quant, most) in [
        ("gemma-3-12b", "q4_0", 25),
        ("gemma-4-26b-a4b", "q4_0", 11),
        ("gpt-oss-20b", "mxfp4_moe", 8),
    ] {
        let file = Gguf::synth(preset, quant).expect("a preset");
        let settings = Settings {
            context: Some(32_768),
            parallel: 8,
            ..Settings::default()
        };
        let estimate = MemoryEstimate::new(&file, &settings, u64::MAX / 2).expect("one");
        println!(
            "{preset}: {:.2} GB beside the weights",
            estimate.non_weight_bytes as f64 / 1e9
        );
        assert!(
            estimate.non_weight_bytes < most * 1_000_000_000,
            "{preset}: {} bytes",
            estimate.non_weight_bytes
        );
    }
}

/// Returns the answers to prompts that are added `apart` steps after each other.
fn answers(
    batcher: &mut Batcher,
    prompts: &[Vec<u32>],
    reuse: Reuse,
    apart: usize,
) -> Vec<Vec<u32>> {
    let sampler = || Sampler::new(SamplingParams::greedy()).expect("parameters in range");
    let (mut out, mut here) = (
        vec![Vec::new(); prompts.len()],
        BTreeMap::<SequenceId, usize>::new(),
    );
    let (mut step, mut come) = (0, 0);
    while come < prompts.len() || !here.is_empty() {
        while come < prompts.len() && step >= come * apart {
            let options = SequenceOptions {
                reuse,
                batch_invariant: reuse == Reuse::Exact,
                ..SequenceOptions::default()
            };
            here.insert(
                batcher.add(&prompts[come], options).expect("a prompt"),
                come,
            );
            come += 1;
        }
        for of in batcher.step(&mut |_, _| None).expect("a step") {
            let (nth, history) = (
                here[&of.sequence],
                batcher.scheduler().tokens(of.sequence).to_vec(),
            );
            let token = sampler()
                .sample(batcher.logits(of).expect("logits"), &history)
                .expect("a token");
            out[nth].push(token);
            if out[nth].len() < 30 {
                batcher.push(of.sequence, token);
            } else {
                batcher.remove(of.sequence);
                here.remove(&of.sequence);
            }
        }
        step += 1;
    }
    assert_eq!(batcher.load().pages, 0, "nobody has a page");
    out
}

/// Conversations with shared prefixes that return, with more window pages than the pool holds.
#[test]
fn answers_are_those_of_each_alone() {
    let common = text(1, 150);
    let of = |seed: u32, begin: usize, len: usize| [&common[..begin], &text(seed, len)].concat();
    let prompts = [
        of(2, 150, 90),
        of(3, 0, 70),
        of(4, 150, 20),
        of(2, 150, 91),
        of(5, 100, 33),
        of(6, 150, 200),
    ];
    for name in FILES {
        let opened = open(
            "cpu",
            &Options {
                quick: true,
                ..Options::default()
            },
        )
        .expect("a device");
        let engine = engine(name, opened, CacheType::F16, SEQUENCES);
        assert!(engine.cache().window_pages().is_some());
        let mut batcher = Batcher::new(engine);
        let alone: Vec<Vec<u32>> = prompts
            .iter()
            .map(|one| {
                batcher.reset();
                answers(&mut batcher, std::slice::from_ref(one), Reuse::Exact, 0).remove(0)
            })
            .collect();
        for apart in [0, 5, 40] {
            assert_eq!(
                answers(&mut batcher, &prompts, Reuse::Exact, apart),
                alone,
                "{name}, {apart} steps apart"
            );
        }
        assert!(
            batcher.load().cached_window_pages > 0,
            "{name}: {:?}",
            batcher.load()
        );
    }
}

#[test]
fn a_prompt_that_is_run_apart_has_windows_in_turn() {
    let tokens = text(8, 300);
    for name in [FILES[0], FILES[3]] {
        let mut alone = engine(
            name,
            open("cpu", &exact()).expect("a device"),
            CacheType::F32,
            1,
        );
        let expected = forward(&mut alone, &tokens, 0, true);
        let engine = engine(
            name,
            open("cpu", &exact()).expect("a device"),
            CacheType::F32,
            SEQUENCES,
        );
        let mut batcher = Batcher::new(engine);
        let mut found = Vec::new();
        apart(&mut batcher, &tokens, CHUNK, &mut |engine, run| {
            found.extend(engine.logits(run, Logits::All).expect("logits"));
        });
        let error = rms(&found, &expected);
        assert!(error < NEAR, "{name}: {error}");
    }
}
