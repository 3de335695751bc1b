//! Gradients of the demo model against PyTorch in f64.

use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::{self, Trained, TrainingShape};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::train::{Adapter, PlannedTraining, Trainer, TrainerOptions, TrainingBatch};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest error of a gradient, relative to its L2 norm; of an entry, to the largest entry.
const NORM: f64 = 1e-4;
const ENTRY: f64 = 1e-3;

/// Rows of tokens, and which of them are targets.
#[derive(Deserialize)]
pub struct Rows {
    pub tokens: Vec<Vec<u32>>,
    pub is_target: Vec<Vec<u8>>,
}

/// A gradient by its norm and some entries: flat index and value.
#[derive(Deserialize)]
struct Gradient {
    norm: f64,
    entries: Vec<(usize, f64)>,
}

#[derive(Deserialize)]
struct Reference {
    loss: f64,
    total_norm: f64,
    tensors: BTreeMap<String, Gradient>,
}

pub fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> T {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("its fields")
}

/// A batch of the mean loss over all targets.
pub fn batch(rows: &Rows) -> TrainingBatch {
    let count: u32 = rows
        .is_target
        .iter()
        .flat_map(|r| &r[1..])
        .map(|&t| u32::from(t))
        .sum();
    let next = |row: &Vec<u32>| row[1..].iter().copied().chain([0]).collect::<Vec<u32>>();
    let weights = |row: &Vec<u8>| {
        let own = row[1..].iter().map(|&t| f32::from(t) / count as f32);
        own.chain([0.0]).collect::<Vec<f32>>()
    };
    TrainingBatch {
        tokens: rows.tokens.concat(),
        positions: rows
            .tokens
            .iter()
            .flat_map(|row| 0..row.len() as u32)
            .collect(),
        targets: rows.tokens.iter().flat_map(next).collect(),
        weights: rows.is_target.iter().flat_map(weights).collect(),
    }
}

pub fn trainer(file: &Gguf, device: &str, adapter: Option<&Adapter>, rows: &Rows) -> Trainer {
    let trained = adapter.map_or(Trained::Full, |a| Trained::LowRank(a.low_rank()));
    let (sequences, length) = (rows.tokens.len(), rows.tokens[0].len());
    let options = TrainerOptions {
        shape: TrainingShape {
            sequences,
            length,
            packed: false,
            loss_rows: length,
        },
        trained,
        clip: 1.0,
        weight_decay: 0.01,
        exact: true,
    };
    let opened = open(device, &Options::default()).expect("a device");
    let opened = opened.with_precision(Precision::Exact);
    let planned = PlannedTraining::new(file, opened, options, &|_| ()).expect("a plan");
    let mut trainer = planned.load(&|_| ()).expect("a trainer");
    for (name, tensor) in adapter.iter().flat_map(|a| &a.tensors) {
        trainer
            .set_parameter(name, &tensor.values)
            .expect("a parameter");
    }
    trainer
}

/// Compares the gradients of a step with a reference; returns what differs.
pub fn differences(trainer: &mut Trainer, batch: &TrainingBatch, reference: &Path) -> Vec<String> {
    let reference: Reference = read(reference);
    trainer.accumulate(batch).expect("a pass");
    let step = trainer.finish_gradients().expect("a norm");
    let mut wrong = Vec::new();
    let mut near = |what: &str, found: f64, expected: f64, bound: f64| {
        if (found - expected).abs() > bound {
            wrong.push(format!(
                "{what}: {found}, expected {expected} within {bound}"
            ));
        }
    };
    near(
        "loss",
        step.loss.into(),
        reference.loss,
        NORM * reference.loss,
    );
    let norm = reference.total_norm;
    near("norm of all", step.gradient_norm.into(), norm, NORM * norm);
    let all = trainer.gradients().expect("gradients");
    for (name, expected) in &reference.tensors {
        let Some(place) = trainer.places().get(name) else {
            near(&format!("{name} is not trained"), 0.0, 1.0, 0.0);
            continue;
        };
        let found = &all[place.range.clone()];
        let squares: f64 = found.iter().map(|&g| f64::from(g) * f64::from(g)).sum();
        near(name, squares.sqrt(), expected.norm, NORM * expected.norm);
        let largest = expected
            .entries
            .iter()
            .map(|e| e.1.abs())
            .fold(0.0, f64::max);
        for &(at, value) in &expected.entries {
            near(
                &format!("{name}[{at}]"),
                found[at].into(),
                value,
                ENTRY * largest,
            );
        }
    }
    wrong
}

fn data(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    folder.join(name)
}

/// Compares the gradients of the demo model's adapters, computed on a device.
pub fn check_adapters(device: &str) {
    let file = Gguf::open(data("demo-glm-Q4_K_M.gguf")).expect("a model");
    let model = arch::load(file.metadata(), &file).expect("a model");
    let adapter = Gguf::open(data("training/adapter.gguf")).expect("an adapter");
    let adapter = Adapter::read(&adapter, model.as_ref()).expect("an adapter");
    let rows: Rows = read(&data("training/batch.json"));
    let mut trainer = trainer(&file, device, Some(&adapter), &rows);
    let wrong = differences(
        &mut trainer,
        &batch(&rows),
        &data("training/gradients.json"),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

