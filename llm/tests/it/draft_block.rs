//! Blocks that draft tokens: their logits against the references of `reference/`-like models, by
//! single rows, by rows of a batch, and behind a prompt that filled their cache.

use crate::common::data;
use crate::parity_support::tables::{argmax, ids, npy, rms};
use gristmill_backend::{Opened, Options, Precision, open};
use gristmill_llm::arch::{CacheType, DraftSource, Logits};
use gristmill_llm::engine::{Chunk, DecodeRow, Engine, Pages, Settings, Step, TokenSource};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::RowSampling;

/// RMS of the difference, in standard deviations of the reference.
const EXACT: f64 = 1e-3;

fn opened(device: &str) -> Opened {
    let options = Options {
        precision: Precision::Exact,
        quick: true,
        ..Options::default()
    };
    open(device, &options).expect("a device")
}

/// A model with its draft block, one sequence's tokens, and the reference.
struct Drafting {
    engine: Engine,
    tokens: Vec<u32>,
    expected: Vec<f32>,
    pages: Vec<u32>,
}

impl Drafting {
    fn new(device: &str, family: &str) -> Drafting {
        let of = |end: &str| data(&format!("families/{family}-{end}"));
        let file = Gguf::open(of("q8_0.gguf")).expect("a GGUF file");
        let settings = Settings {
            context: Some(256),
            cache: CacheType::F32,
            chunk: 128,
            long: Some(128),
            parallel: 4,
            draft_block: true,
            ..Settings::default()
        };
        let engine = Engine::load(&file, opened(device), settings, &|_| ()).expect("a model");
        assert!(engine.has_draft_block());
        Drafting {
            engine,
            tokens: ids(&of("tokens.txt")),
            expected: npy(&of("q8_0-mtp-logits.npy")),
            pages: (0..16).collect(),
        }
    }
    fn vocabulary(&self) -> usize {
        self.expected.len() / self.tokens.len()
    }
    /// Runs a prompt, which may fill the draft block's cache.
    fn prompt(&mut self, length: usize, fills_drafts: bool) {
        let chunk = Chunk {
            tokens: &self.tokens[..length],
            position: 0,
            pages: Pages {
                all: &self.pages,
                ..Pages::default()
            },
            exact: false,
            logits: Logits::Last,
            fills_drafts,
        };
        let step = Step {
            chunk: Some(chunk),
            ..Step::default()
        };
        self.engine.run(&step).expect("a prompt");
    }
    /// Runs the draft block for these positions, each behind the hidden row before it, and compares
    /// the logits.
    fn compare(&mut self, positions: std::ops::Range<usize>) {
        let row = |position: usize| DecodeRow {
            token: TokenSource::Token(self.tokens[position]),
            position,
            pages: Pages {
                all: &self.pages,
                ..Pages::default()
            },
            sampling: RowSampling::greedy(),
        };
        let rows: Vec<_> = positions.clone().map(row).collect();
        let from: Vec<_> = positions.clone().map(|at| at.checked_sub(1)).collect();
        let step = Step {
            rows: &rows,
            ..Step::default()
        };
        let output = self.engine.run_drafts(&step, DraftSource::Model, &from);
        let output = output.expect("drafts");
        let (mut logits, n) = (Vec::new(), self.vocabulary());
        for (row, position) in positions.enumerate() {
            self.engine.row_logits(row, &mut logits).expect("logits");
            let expected = &self.expected[position * n..][..n];
            let error = rms(&logits, expected);
            assert!(error <= EXACT, "position {position}: rms {error}");
            assert_eq!(
                output.chosen[row],
                Some(argmax(expected) as u32),
                "{position}"
            );
        }
    }
}

fn check(device: &str, family: &str) {
    let mut of = Drafting::new(device, family);
    let all = of.tokens.len();
    of.prompt(all, false);
    for position in 0..all {
        of.compare(position..position + 1);
    }
    // Rows of a batch are of the same sequence, each behind the ones before it.
    for position in (0..all - 3).step_by(3) {
        of.compare(position..position + 3);
    }
    // Another cache, which a prompt fills.
    let mut filled = Drafting::new(device, family);
    filled.prompt(all - 1, true);
    filled.compare(all - 1..all);
}

#[test]
fn deepseek2_drafts_as_its_reference() {
    check("cpu", "deepseek2-nextn");
}
#[test]
fn glm4moe_drafts_as_its_reference() {
    check("cpu", "glm4moe");
}
#[test]
fn qwen35_drafts_as_its_reference() {
    check("cpu", "qwen35");
}
#[cfg(feature = "cuda-tests")]
#[test]
fn families_draft_on_cuda_as_their_references() {
    for family in ["deepseek2-nextn", "glm4moe", "qwen35"] {
        check("cuda", family);
    }
}
