//! Gradients by products of bf16 operands, on GPUs with matrix units.

use super::harness::{Way, check};
use super::ways::{linear_of, store};
use super::{gradients, simulated};
use gristmill_backend::Opened;
use gristmill_backend::cuda::dialect::Cuda;
use gristmill_backend::interp::InterpDevice;
use gristmill_compiler::{Cheapest, compile};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::sync::Arc;

/// A GPU whose products have halves as operands.
fn target() -> Target {
    Target {
        threads: 64,
        activation_group: 1,
        ..Target::named("h200")
    }
}

/// Compares every case with its truth, by the cheapest schedule and by a perturbed one.
fn compare(device: &Opened, name: &str) {
    let way = |seed: Option<u64>| Way {
        name: seed.map_or(name.into(), |s| format!("{name}, seed {s}")),
        device: device.clone(),
        seed,
        same_as: None,
    };
    check(gradients::of_halves(), [None, Some(1)].map(way).into());
}

#[test]
fn as_nests() {
    let device = Opened {
        target: target(),
        ..Opened::new(Arc::new(InterpDevice::new()), None)
    };
    compare(&device, "interp");
}

#[test]
fn as_linear_code() {
    compare(
        &linear_of(vec![("64 threads", target())])[0].device,
        "linear",
    );
}

#[test]
fn as_threads() {
    match simulated::Simulated::new(target(), store()) {
        Ok(device) => compare(&Opened::new(Arc::new(device), Some(&Cuda)), "threads"),
        Err(missing) => simulated::skip(&missing),
    }
}

/// Products of activations, of gradients, and of a weight across its rows run on matrix units.
#[test]
fn kernels_multiply_on_matrix_units() {
    for (case, least) in gradients::of_halves().iter().zip([40, 40, 8, 80, 32, 48]) {
        let compiled = compile(&case.function, &target(), Some(&Cuda), &mut Cheapest);
        let of = |p: &Arc<Program>| p.source.matches("mma_").count();
        let products: usize = compiled.programs.iter().map(of).sum();
        let titles: Vec<_> = compiled.programs.iter().map(|p| &p.title).collect();
        assert!(products >= least, "{}: {products} in {titles:?}", case.name);
    }
}
