//! Steps that read consecutive pages without a block table, and steps with one, match reference
//! logits of other engines for any position of the sequence in the pool.

use crate::parity_support::tables::{argmax, data, ids, npy, rms};
use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::{self, Logits};
use gristmill_llm::engine::{Chunk, DecodeRow, Engine, Pages, Settings, Step, TokenSource};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::RowSampling;

/// RMS of the difference, in standard deviations of the reference.
const EXACT: f64 = 1e-3;
/// Context in tokens: two contexts are more pages than the kernels of one sequence address, so a
/// sequence may begin after the first page.
const CONTEXT: usize = 1900;
/// Tokens of a step.
const CHUNK: usize = 32;
/// Positions of a page.
const PAGE: usize = arch::Options::PAGE;
/// Families with every kind of cache: keys and values, latent, sliding windows, windows
/// with sinks, recurrent states.
const FAMILIES: [(&str, &str); 6] = [
    ("llama", "q4_k_m"),
    ("deepseek2", "q8_0"),
    ("gemma3", "q8_0"),
    ("gemma4", "q8_0"),
    ("gpt-oss", "mxfp4"),
    ("qwen35", "q8_0"),
];

/// Returns an engine for one sequence with a pool of two contexts.
fn engine(device: &str, file: &Gguf) -> Engine {
    let opened = open(
        device,
        &Options {
            precision: Precision::Exact,
            quick: true,
            ..Options::default()
        },
    )
    .expect("a device");
    let settings = Settings {
        context: Some(CONTEXT),
        cache: CacheType::F32,
        chunk: CHUNK,
        contexts: 2,
        ..Settings::default()
    };
    Engine::load(file, opened, settings, &|_| ()).expect("a model")
}

/// Pages of a sequence, and the logits of its tokens so far.
struct Sequence {
    all: Vec<u32>,
    windows: Vec<u32>,
    state: u32,
    logits: Vec<f32>,
}

impl Sequence {
    /// Creates a sequence of `blocks` blocks: pages from `first` on, `apart` pages apart (1:
    /// consecutive), and window pages from `begin` on in a ring of `ring`.
    fn new(
        engine: &Engine,
        blocks: usize,
        [first, apart]: [u32; 2],
        [begin, ring]: [u32; 2],
        state: u32,
    ) -> Sequence {
        let windows = engine.cache().window_pages();
        let ring_of = |block| begin + block % ring;
        Sequence {
            all: (0..blocks as u32)
                .map(|block| first + block * apart)
                .collect(),
            windows: windows.map_or(Vec::new(), |count| {
                (0..blocks as u32)
                    .map(|b| ring_of(b) % count as u32)
                    .collect()
            }),
            state: if engine.cache().state_rows() > 0 {
                state
            } else {
                0
            },
            logits: Vec::new(),
        }
    }
    fn pages(&self, end: usize) -> Pages<'_> {
        let blocks = end.div_ceil(PAGE);
        let windows = &self.windows[..self.windows.len().min(blocks)];
        Pages {
            all: &self.all[..blocks],
            windows,
            state: self.state,
            ..Pages::default()
        }
    }
    /// Runs these tokens in one step.
    fn run(&mut self, engine: &mut Engine, tokens: &[u32], position: usize, contiguous: bool) {
        let pages = self.pages(position + tokens.len());
        let mut logits = Vec::new();
        if let [token] = *tokens {
            let rows = [DecodeRow {
                token: TokenSource::Token(token),
                position,
                pages,
                sampling: RowSampling::greedy(),
            }];
            let output = engine
                .run(&Step {
                    rows: &rows,
                    contiguous,
                    ..Step::default()
                })
                .expect("a step");
            engine.row_logits(0, &mut logits).expect("logits");
            assert_eq!(output.chosen, [Some(argmax(&logits) as u32)]);
        } else {
            let chunk = Chunk {
                tokens,
                position,
                pages,
                exact: false,
                logits: Logits::All,
                fills_drafts: false,
            };
            engine
                .run(&Step {
                    chunk: Some(chunk),
                    contiguous,
                    ..Step::default()
                })
                .expect("a step");
            let mut row = Vec::new();
            for at in 0..tokens.len() {
                engine.row_logits(at, &mut row).expect("logits");
                logits.extend_from_slice(&row);
            }
        }
        self.logits.extend(logits);
    }
}

/// Returns the boundaries of steps: chunks of various sizes, and single tokens
/// across a page boundary.
fn cuts(tokens: usize) -> Vec<usize> {
    let mut cuts = vec![0, 32, 39, 60];
    cuts.extend(61..70);
    cuts.extend([90, 91, tokens]);
    cuts
}

fn check(device: &str, family: &str, quant: &str) {
    let of = |end: &str| data(&format!("families/{family}-{end}"));
    let file = Gguf::open(of(&format!("{quant}.gguf"))).expect("a GGUF file");
    let (expected, tokens) = (
        npy(&of(&format!("{quant}-logits.npy"))),
        ids(&of("tokens.txt")),
    );
    let mut e = engine(device, &file);
    assert!(e.cache().pages() >= 2 * CONTEXT.div_ceil(PAGE));
    let blocks = tokens.len().div_ceil(PAGE);
    let ring = e.cache().window_pages().unwrap_or(1) as u32;
    let near = |what: &str, found: &[f32]| {
        let error = rms(found, &expected);
        println!("{family} on {device}, {what}: rms {error:.2e}");
        assert!(error <= EXACT, "{family} on {device}, {what}: rms {error}");
    };
    for (what, pages, windows, state) in [
        ("from the first page", [0, 1], [0, ring], 0),
        ("from a later page", [20, 1], [ring - 1, ring], 2),
        ("in scattered pages", [50, 3], [2, 3], 1),
    ] {
        for contiguous in [true, false] {
            // Rows of other sequences in the pool have no effect.
            e.fill_cache_for_bench(CONTEXT).expect("filled");
            let mut sequence = Sequence::new(&e, blocks, pages, windows, state);
            for cut in cuts(tokens.len()).windows(2) {
                sequence.run(&mut e, &tokens[cut[0]..cut[1]], cut[0], contiguous);
            }
            near(
                &format!("{what}, contiguous: {contiguous}"),
                &sequence.logits,
            );
        }
    }
    // Two sequences that take turns.
    let mut both = [([0, 1], [0, 3], 0), ([25, 1], [3, 3], 1)]
        .map(|(pages, windows, state)| Sequence::new(&e, blocks, pages, windows, state));
    for cut in cuts(tokens.len()).windows(2) {
        for sequence in &mut both {
            sequence.run(&mut e, &tokens[cut[0]..cut[1]], cut[0], true);
        }
    }
    both.iter()
        .for_each(|sequence| near("two in turn", &sequence.logits));
}

#[test]
fn contiguous_steps_and_steps_by_tables_agree() {
    FAMILIES
        .iter()
        .for_each(|(family, quant)| check("cpu", family, quant));
}

/// On the first CUDA device, as on a CPU.
#[cfg(feature = "cuda-tests")]
#[test]
fn contiguous_steps_on_cuda() {
    FAMILIES
        .iter()
        .for_each(|(family, quant)| check("cuda", family, quant));
}

/// On the first adapter, which may be a software one.
#[cfg(feature = "wgpu")]
#[test]
fn contiguous_steps_on_wgpu() {
    [("llama", "q4_k_m"), ("gemma3", "q8_0"), ("qwen35", "q8_0")]
        .iter()
        .for_each(|(f, q)| check("wgpu", f, q));
}
