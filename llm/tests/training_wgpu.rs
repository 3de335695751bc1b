//! A step of training on the first adapter of `wgpu`, possibly a software one, against the CPU.
//!
//! The model has one kind of layer: software adapters take 0.1 to 1 s to compile a kernel, and the
//! demo model has twice as many kernels.

#[path = "it/training_support.rs"]
mod training_support;

use gristmill_llm::arch;
use gristmill_llm::gguf::Gguf;
use gristmill_llm::train::{Place, Targets, initial_adapter};
use training_support::{Rows, batch, data, trainer};

/// Largest difference of a gradient, relative to the norm of its tensor.
const BOUND: f64 = 1e-4;

#[test]
fn gradients_of_adapters_on_wgpu() {
    let file = Gguf::open(data("families/qwen3moe-q8_0.gguf")).expect("a model");
    let model = arch::load(file.metadata(), &file).expect("a model");
    let weights = Targets::All.choose(model.as_ref());
    let mut adapter = initial_adapter(model.as_ref(), &weights, 4, 8.0, 1);
    for (name, tensor) in &mut adapter.tensors {
        if name.ends_with(".lora_b") {
            let small = |i: usize| ((i * 37 + 11) % 101) as f32 / 2000.0 - 0.025;
            tensor.values = (0..tensor.values.len()).map(small).collect();
        }
    }
    let row = |from: u32| (0..16).map(|i| (from + 11 * i) % 200).collect();
    let rows = Rows {
        tokens: vec![row(3), row(50)],
        is_target: vec![vec![1; 16]; 2],
    };
    let [(loss, found), (expected_loss, expected)] = ["wgpu", "cpu"].map(|device| {
        let mut trainer = trainer(&file, device, Some(&adapter), &rows);
        trainer.accumulate(&batch(&rows)).expect("a pass");
        let loss = trainer.finish_gradients().expect("a norm").loss;
        let all = trainer.gradients().expect("gradients");
        let of =
            |(name, place): (&str, &Place)| (name.to_owned(), all[place.range.clone()].to_vec());
        (loss, trainer.places().iter().map(of).collect::<Vec<_>>())
    });
    assert!(
        (loss / expected_loss - 1.0).abs() < 1e-5,
        "{loss}, {expected_loss}"
    );
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        let norm = |values: &mut dyn Iterator<Item = f32>| -> f64 {
            values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
        };
        let difference = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
        let whole = norm(&mut expected.iter().copied());
        assert!(whole > 0.0, "{name}");
        assert!(
            difference <= BOUND * whole,
            "{name}: {difference} of {whole}"
        );
    }
}
