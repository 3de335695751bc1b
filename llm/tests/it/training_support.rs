//! A trainer and a batch of training tests.

use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::{Trained, TrainingShape};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::train::{Adapter, PlannedTraining, Trainer, TrainerOptions, TrainingBatch};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Returns the path of a file in the test data.
pub fn data(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    folder.join(name)
}

/// Rows of tokens, and which of them are targets.
#[derive(Deserialize)]
pub struct Rows {
    pub tokens: Vec<Vec<u32>>,
    pub is_target: Vec<Vec<u8>>,
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
