//! Blocks that draft tokens: their logits against the references of `reference/`-like models, by
//! single rows, by rows of a batch, and behind a prompt that filled their cache.

use crate::common::data;
use crate::parity_support::tables::{argmax, ids, npy, rms};
use gristmill_backend::{Opened, Options, Precision, open};
use gristmill_llm::arch::{self, CacheType, DraftSource, Logits, Trained, TrainingShape};
use gristmill_llm::engine::{Chunk, DecodeRow, Engine, Pages, Settings, Step, TokenSource};
use gristmill_llm::gguf::{Gguf, TensorDecl, Writer};
use gristmill_llm::sampling::RowSampling;
use gristmill_llm::synth;
use gristmill_llm::train::{PlannedTraining, TrainerOptions, TrainingBatch};
use gristmill_tensor::evaluate;
use std::fs;
use std::path::Path;

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

/// Writes the tensors of a file that `keeps` with this number of blocks, and of those for drafts.
fn write_part(file: &Gguf, to: &Path, [blocks, drafts]: [u32; 2], keeps: &dyn Fn(&str) -> bool) {
    let mut metadata = file.metadata().clone();
    metadata.insert("deepseek2.block_count", blocks);
    metadata.insert("deepseek2.nextn_predict_layers", drafts);
    let tensors: Vec<_> = file.tensors().iter().filter(|t| keeps(&t.name)).collect();
    let decls: Vec<_> = tensors
        .iter()
        .map(|t| TensorDecl {
            name: &t.name,
            dims: &t.dims,
            encoding: t.encoding,
        })
        .collect();
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, &metadata, &decls).expect("a header");
    for tensor in tensors {
        let mut bytes = vec![0; tensor.bytes as usize];
        file.read_tensor(tensor, &mut bytes).expect("a tensor");
        writer.data(&bytes).expect("data");
    }
    writer.finish().expect("a file");
    fs::write(to, out).expect("a file");
}

/// A block in a file beside that of the model is as one in it.
#[test]
fn a_block_may_be_in_a_file_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let whole = Gguf::open(data("families/deepseek2-nextn-q8_0.gguf")).expect("a GGUF file");
    let count = |file: &Gguf, key: &str| {
        let key = format!("deepseek2.{key}");
        file.metadata().u32(&key).expect("a number").unwrap_or(0)
    };
    let blocks = count(&whole, "block_count");
    let of_block = format!("blk.{}.", blocks - 1);
    let is_of_block = |name: &str| name.starts_with(&of_block);
    write_part(&whole, &path("m.gguf"), [blocks - 1, 0], &|name| {
        !is_of_block(name)
    });
    let open = || Gguf::open(path("m.gguf")).expect("a GGUF file");
    let mut alone = open();
    assert_eq!(
        alone
            .attach_draft_block_beside(&path("m.gguf"))
            .expect("no error"),
        None
    );

    let is_shared = |name: &str| is_of_block(name) || name == "token_embd.weight";
    for side in ["mtp-m.gguf", "mtp-other.gguf"] {
        write_part(&whole, &path(side), [blocks, 1], &is_shared);
        let mut model = open();
        let found = model.attach_draft_block_beside(&path("m.gguf"));
        assert_eq!(found.expect("a block"), Some(path(side)));
        assert_eq!(count(&model, "block_count"), blocks);
        assert_eq!(model.tensors().len(), whole.tensors().len());
        for tensor in whole.tensors() {
            let own = model.tensor(&tensor.name).expect("a tensor");
            let read = |file: &Gguf, tensor| {
                let mut bytes = vec![0; own.bytes as usize];
                file.read_tensor(tensor, &mut bytes).expect("a tensor");
                bytes
            };
            assert_eq!(read(&model, own), read(&whole, tensor), "{}", tensor.name);
        }
        fs::remove_file(path(side)).expect("a file");
    }
    // Behind another number of layers it is refused, and left out if it has another name.
    write_part(&whole, &path("mtp-m.gguf"), [blocks + 1, 1], &is_shared);
    let refused = open()
        .attach_draft_block_beside(&path("m.gguf"))
        .expect_err("an error");
    assert!(refused.to_string().contains("draft tokens"), "{refused}");
    fs::rename(path("mtp-m.gguf"), path("mtp-other.gguf")).expect("a file");
    let found = open().attach_draft_block_beside(&path("m.gguf"));
    assert_eq!(found.expect("no error"), None);
}

/// Returns the mean negative log-likelihood of the tokens behind the first one, by these logits.
fn loss_of(logits: &[f32], tokens: &[u32]) -> f64 {
    let rows = logits.chunks(logits.len() / tokens.len()).zip(&tokens[1..]);
    let of_row = |(row, &next): (&[f32], &u32)| {
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row.iter().map(|&x| f64::from(x - largest).exp()).sum();
        sum.ln() - f64::from(row[next as usize] - largest)
    };
    rows.map(of_row).sum::<f64>() / (tokens.len() - 1) as f64
}

/// In training, a block's loss is that of its reference's logits, and its gradients are the slopes
/// of the loss. Nothing else is trained.
#[test]
fn a_block_is_trained_alone() {
    for family in ["deepseek2-nextn", "glm4moe"] {
        let of = |end: &str| data(&format!("families/{family}-{end}"));
        let file = Gguf::open(of("q8_0.gguf")).expect("a GGUF file");
        let (tokens, expected) = (ids(&of("tokens.txt")), npy(&of("q8_0-mtp-logits.npy")));
        let layers = arch::load(file.metadata(), &file)
            .expect("a model")
            .layers();
        let length = tokens.len();
        let options = TrainerOptions {
            shape: TrainingShape {
                sequences: 1,
                length,
                packed: false,
                loss_rows: length,
            },
            trained: Trained::DraftBlock(layers),
            clip: 1.0,
            weight_decay: 0.0,
            exact: true,
        };
        let planned = PlannedTraining::new(&file, opened("cpu"), options, &|_| ());
        let mut trainer = planned.expect("a plan").load(&|_| ()).expect("a trainer");
        let mut values: Vec<(String, Vec<f32>)> = Vec::new();
        for (name, _) in trainer.places().iter() {
            assert!(name.starts_with(&format!("blk.{layers}.")), "{name}");
            let tensor = file.tensor(name).expect("a tensor");
            let mut bytes = vec![0; tensor.bytes as usize];
            file.read_tensor(tensor, &mut bytes).expect("a tensor");
            let decoded = evaluate::decode(tensor.encoding, &bytes);
            values.push((name.to_owned(), decoded.iter().map(|&v| v as f32).collect()));
        }
        for (name, values) in &values {
            trainer.set_parameter(name, values).expect("a parameter");
        }
        let count = length as u32;
        let mut weights = vec![1.0 / (length - 1) as f32; length];
        weights[length - 1] = 0.0;
        let batch = TrainingBatch {
            tokens: tokens.clone(),
            positions: (0..count).collect(),
            targets: tokens[1..].iter().copied().chain([0]).collect(),
            weights,
        };
        let loss = f64::from(trainer.evaluate(&batch).expect("a loss"));
        let of_reference = loss_of(&expected, &tokens);
        assert!(
            (loss - of_reference).abs() < 1e-3,
            "{family}: {loss}, {of_reference}"
        );

        trainer.accumulate(&batch).expect("gradients");
        trainer.finish_gradients().expect("gradients");
        let gradients = trainer.gradients().expect("gradients");
        let mut checked = 0;
        for (name, values) in &values {
            let place = trainer.places().get(name).expect("a place").range.clone();
            let own = &gradients[place];
            let norm = own
                .iter()
                .map(|&g| f64::from(g).powi(2))
                .sum::<f64>()
                .sqrt();
            // Smaller ones drown in the rounding of the loss.
            if norm < 0.02 {
                continue;
            }
            let mut slope_by = |step: f64| {
                let [up, down] = [step, -step].map(|step| {
                    let scale = (step / norm) as f32;
                    let moved = values.iter().zip(own).map(|(v, g)| v + scale * g);
                    trainer
                        .set_parameter(name, &moved.collect::<Vec<_>>())
                        .expect("a parameter");
                    f64::from(trainer.evaluate(&batch).expect("a loss"))
                });
                (up - down) / (2.0 * step)
            };
            // A step may be too long for a straight line, or choose other experts.
            let steps = [5e-3, 2e-3, 1e-3, 5e-4, 2e-4].map(|step| step / norm);
            let slopes = steps.map(&mut slope_by);
            let is_slope = |slope: &f64| (slope / norm - 1.0).abs() < 0.03;
            assert!(
                slopes.iter().any(is_slope),
                "{family}, {name}: {slopes:?}, {norm}"
            );
            trainer.set_parameter(name, values).expect("a parameter");
            checked += 1;
        }
        assert!(checked > 8, "{family}: {checked} tensors");
    }
}

/// A model without a block gets one, which is a block like those of files.
#[test]
fn a_new_block_is_like_the_last_layer() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo-glm-Q4_0.gguf");
    let mut file = Gguf::open(path).expect("a GGUF file");
    let before = file.tensors().len();
    synth::add_draft_block(&mut file, 1).expect("a block");
    assert!(file.tensors().len() > before);
    let model = arch::load(file.metadata(), &file).expect("a model");
    assert_eq!(model.draft_caches().len(), 1);
    let with = file.tensors().len();
    synth::add_draft_block(&mut file, 1).expect("it has one");
    assert_eq!(file.tensors().len(), with);
    let mut other = Gguf::open(data("families/gemma4-q8_0.gguf")).expect("a GGUF file");
    let refused = synth::add_draft_block(&mut other, 1).expect_err("no such architecture");
    assert!(refused.to_string().contains("mtp"), "{refused}");
}
