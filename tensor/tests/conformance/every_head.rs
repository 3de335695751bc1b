//! Decompressed keys and values of every MLA head, as written, without alternatives.

use super::harness::{Way, check};
use super::ways::{linear_of, store};
use super::{attention, simulated};
use gristmill_backend::Opened;
use gristmill_backend::cuda::dialect::Cuda;
use gristmill_backend::interp::InterpDevice;
use gristmill_compiler::{Listed, compile};
use gristmill_uop::target::Target;
use std::sync::Arc;

/// A GPU with warps that reduce cooperatively, and rewrite alternatives off.
fn target() -> Target {
    Target {
        threads: 64,
        alternatives: false,
        ..Target::named("h200")
    }
}

/// Compares every case with its truth, by the cheapest schedule and by perturbed ones.
fn compare(device: &Opened, name: &str, seeds: &[u64]) {
    let way = |seed: Option<u64>| {
        let name = seed.map_or(format!("{name}, as written"), |s| {
            format!("{name}, as written, seed {s}")
        });
        Way {
            name,
            device: device.clone(),
            seed,
            same_as: None,
        }
    };
    let ways = std::iter::once(None)
        .chain(seeds.iter().copied().map(Some))
        .map(way)
        .collect();
    check(attention::every_head(), ways);
}

#[test]
fn as_nests() {
    compare(
        &Opened {
            target: target(),
            ..Opened::new(Arc::new(InterpDevice::new()), None)
        },
        "interp",
        &[1],
    );
}

#[test]
fn as_linear_code() {
    compare(
        &linear_of(vec![("64 threads", target())])[0].device,
        "linear",
        &[1],
    );
}

#[test]
fn as_threads() {
    match simulated::Simulated::new(target(), store()) {
        Ok(device) => compare(
            &Opened::new(Arc::new(device), Some(&Cuda)),
            "threads",
            &[1, 2],
        ),
        Err(missing) => simulated::skip(&missing),
    }
}

/// Both weights have the layout of products along rows, and warps multiply dequantised elements.
///
/// One of the weights is read across its rows.
#[test]
fn a_weight_is_unpacked_where_warps_multiply_halves() {
    for case in attention::every_head() {
        let compiled = compile(&case.function, &target(), Some(&Cuda), &mut Listed);
        let unpacked = compiled
            .programs
            .iter()
            .filter(|p| p.title.contains("k_b") && p.source.contains("u16 *"))
            .count();
        let products = compiled
            .programs
            .iter()
            .filter(|p| p.source.contains("mma_halves("))
            .count();
        assert_eq!((compiled.layouts.len(), unpacked), (2, 1), "{}", case.name);
        assert!(products >= 2, "keys and attention: {products}");
    }
}
