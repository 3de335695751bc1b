//! SmolLM2 135M Instruct, a published file, and what llama.cpp computes of it.
//!
//! The folder that `GRISTMILL_REAL` names has the file; `.ci/run` fetches it. The reference is
//! llama.cpp in f32 arithmetic on the file dequantised to f32, with an f32 KV cache.

use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch;
use gristmill_llm::arch::CacheType;
use gristmill_llm::engine::{
    DecodeRow, Engine, Pages, Settings, Step, TokenRun, TokenSource, WholePool,
};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::RowSampling;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Maximum RMS difference of f32 logits, in standard deviations of the reference. Measured: 3e-6
/// with AVX2; the order of sums differs by instruction set and device.
const EXACT: f64 = 5e-5;
/// Margin between the two largest logits above which f32 arithmetic chooses the same token: a
/// standard deviation is 3, and the largest difference of two logits some ten times the RMS.
const MARGIN: f32 = 2e-3;

/// Returns the file, or `None` with a message if there is none and none is required.
pub fn smollm2() -> Option<Gguf> {
    let name = "smollm2.gguf";
    if let Some(folder) = std::env::var_os("GRISTMILL_REAL") {
        return Some(Gguf::open(Path::new(&folder).join(name)).expect("a GGUF file"));
    }
    let required = std::env::var_os("GRISTMILL_REQUIRE_REAL").is_some();
    assert!(!required, "GRISTMILL_REAL does not name a folder");
    println!("skipped: GRISTMILL_REAL names no folder with {name}");
    None
}

/// Returns the path of a reference file.
pub fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/real")
        .join(name)
}

fn read<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    let text = std::fs::read_to_string(reference(name)).expect("a reference file");
    serde_json::from_str(&text).expect("its fields")
}

/// Returns the index of the largest logit, and its distance to the second largest.
fn best(row: &[f32]) -> (u32, f32) {
    let (mut best, mut second) = (0, f32::NEG_INFINITY);
    for (i, &logit) in row.iter().enumerate().skip(1) {
        if logit > row[best] {
            second = row[best];
            best = i;
        } else {
            second = second.max(logit);
        }
    }
    (best as u32, row[best] - second)
}

/// Reference logits of `text.txt`.
#[derive(Deserialize)]
pub struct TextLogits {
    pub tokens: Vec<u32>,
    /// Token with the largest logit, of every row.
    argmax: Vec<u32>,
    /// Rows with reference logits.
    rows: Vec<usize>,
    #[serde(skip)]
    logits: Vec<f32>,
}

impl TextLogits {
    pub fn read() -> TextLogits {
        let bytes = std::fs::read(reference("smollm2-exact-rows.npy")).expect("logits");
        let start = 10 + u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
        let (numbers, _) = bytes[start..].as_chunks::<4>();
        TextLogits {
            logits: numbers.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            ..read("smollm2-tokens.json")
        }
    }

    pub fn vocabulary(&self) -> usize {
        self.logits.len() / self.rows.len()
    }

    /// Returns the RMS difference to the reference rows among the first rows of logits, in
    /// standard deviations of the reference.
    fn rms(&self, found: &[f32]) -> f64 {
        let n = self.vocabulary();
        let rows = self.rows.iter().zip(self.logits.chunks(n));
        let (mut error, mut sum, mut squares, mut count) = (0.0, 0.0, 0.0, 0.0);
        for (row, expected) in rows.filter(|(row, _)| **row < found.len() / n) {
            for (&found, &expected) in found[row * n..][..n].iter().zip(expected) {
                let expected = f64::from(expected);
                error += (f64::from(found) - expected).powi(2);
                sum += expected;
                squares += expected * expected;
                count += 1.0;
            }
        }
        assert!(count > 0.0, "no row to compare");
        (error / (squares - sum * sum / count)).sqrt()
    }

    /// Asserts that f32 logits of the first tokens are the reference's.
    pub fn check(&self, what: &str, found: &[f32]) {
        let error = self.rms(found);
        println!("{what}: rms {error:.2e}");
        assert!(error <= EXACT, "{what}: rms {error} is above {EXACT}");
        let rows = found.chunks(self.vocabulary()).zip(&self.argmax);
        for (i, (row, &expected)) in rows.enumerate() {
            let (token, margin) = best(row);
            assert!(
                token == expected || margin < MARGIN,
                "{what}, row {i}: token {token} by {margin}, not {expected}"
            );
        }
    }
}

/// A prompt without template, and its greedy continuation by the reference.
#[derive(Deserialize)]
pub struct Greedy {
    pub prompt: String,
    pub ids: Vec<u32>,
    greedy: Vec<u32>,
}

impl Greedy {
    pub fn read() -> Vec<Greedy> {
        read("smollm2-greedy.json")
    }
}

/// Returns an engine for `parallel` sequences of `context` tokens; exact arithmetic has an f32 KV
/// cache.
pub fn engine(
    device: &str,
    file: &Gguf,
    precision: Precision,
    parallel: usize,
    context: usize,
) -> Engine {
    let options = Options {
        precision,
        quick: true,
        ..Options::default()
    };
    let settings = Settings {
        context: Some(context),
        cache: if precision == Precision::Exact {
            CacheType::F32
        } else {
            CacheType::F16
        },
        chunk: 128,
        parallel,
        ..Settings::default()
    };
    let opened = open(device, &options).expect("a device");
    Engine::load(file, opened, settings, &|_| ()).expect("a model")
}

/// Returns the logits of all tokens, by steps of at most `chunk` tokens.
pub fn logits(engine: &mut Engine, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let pool = WholePool::new(engine);
    let chunks = tokens.chunks(chunk).enumerate().map(|(i, tokens)| {
        let run = TokenRun {
            tokens,
            position: i * chunk,
            pages: pool.pages(),
            contiguous: true,
        };
        engine.logits(run, arch::Logits::All).expect("logits")
    });
    chunks.collect::<Vec<_>>().concat()
}

/// Continues all prompts in one batch, a token of each in every step, and asserts that every chosen
/// token is the reference's, up to `tokens` of them or the first margin below rounding.
pub fn check_greedy(engine: &mut Engine, prompts: &[Greedy], tokens: usize) {
    let each = engine.cache().pages() / prompts.len();
    let page = |sequence: usize, block: usize| (block * prompts.len() + sequence) as u32;
    let pages: Vec<Vec<u32>> = (0..prompts.len())
        .map(|sequence| (0..each).map(|block| page(sequence, block)).collect())
        .collect();
    let mut texts: Vec<Vec<u32>> = prompts
        .iter()
        .map(|p| {
            p.ids
                .iter()
                .chain(p.greedy.iter().take(tokens))
                .copied()
                .collect()
        })
        .collect();
    let mut row = Vec::new();
    for position in 0.. {
        // The last token predicts nothing that is compared.
        let running = |&s: &usize| position + 1 < texts[s].len();
        let running: Vec<usize> = (0..prompts.len()).filter(running).collect();
        if running.is_empty() {
            break;
        }
        let rows: Vec<DecodeRow> = running
            .iter()
            .map(|&s| DecodeRow {
                token: TokenSource::Token(texts[s][position]),
                position,
                pages: Pages {
                    all: &pages[s][..=position / arch::Options::PAGE],
                    state: s as u32,
                    ..Pages::default()
                },
                sampling: RowSampling::greedy(),
            })
            .collect();
        let step = Step {
            rows: &rows,
            ..Step::default()
        };
        engine.run(&step).expect("a step");
        for (i, &s) in running.iter().enumerate() {
            let next = position + 1;
            if next < prompts[s].ids.len() {
                continue;
            }
            engine.row_logits(i, &mut row).expect("logits");
            let (token, margin) = best(&row);
            if margin < MARGIN {
                println!("{:?} is compared up to token {next}", prompts[s].prompt);
                texts[s].truncate(next);
            } else {
                let expected = texts[s][next];
                assert_eq!(token, expected, "{:?}, token {next}", prompts[s].prompt);
            }
        }
    }
}
