//! Conformance suite: compares every device with the reference evaluator, for many schedules.
//!
//! A case is a captured function with random inputs. `conformance!(name, ways)` instantiates the
//! whole suite for a device. A seed and a case determine the schedule, independent of other cases.
//! The kernels of `neon` run as AArch64 code in an emulator: without the required tools its tests
//! print a notice and pass, or fail if `GRISTMILL_REQUIRE_NEON` is set (CI sets it).
//!
//! - `GRISTMILL_PERTURB=n` runs n perturbed schedules instead of one or two.
//! - `GRISTMILL_CASE=text` runs only the cases with that text in their name.
//! - `GRISTMILL_WAY=text` runs only the ways with that text in their name.
//! - `GRISTMILL_SOURCE` prints the kernels.
//!
//! `cargo xtask conformance` is the long run, and counts which alternatives were taken.
//!
//! `cuda` needs a GPU and the feature `cuda-tests`. To run on a machine without Rust that has a
//! GPU, or a C compiler and more cores, copy the test binary there:
//! `cargo test -p gristmill-tensor --features cuda-tests --test conformance --no-run` prints its
//! path, and `conformance cuda::` or `xtask conformance --binary` runs it.

#[path = "conformance/attention.rs"]
mod attention;
#[path = "conformance/custom.rs"]
mod custom;
#[path = "conformance/dynamic.rs"]
mod dynamic;
#[path = "conformance/elementwise.rs"]
mod elementwise;
#[path = "conformance/emulated.rs"]
mod emulated;
#[path = "conformance/every_head.rs"]
mod every_head;
#[path = "conformance/experts.rs"]
mod experts;
#[path = "conformance/gradients.rs"]
mod gradients;
#[path = "conformance/gradients_of_halves.rs"]
mod gradients_of_halves;
#[path = "conformance/harness.rs"]
mod harness;
#[path = "conformance/invented.rs"]
mod invented;
#[path = "conformance/linear.rs"]
mod linear;
#[path = "conformance/matrix_products.rs"]
mod matrix_products;
#[path = "conformance/memory.rs"]
mod memory;
#[path = "conformance/metal.rs"]
mod metal;
#[path = "conformance/movement.rs"]
mod movement;
#[path = "conformance/network.rs"]
mod network;
#[path = "conformance/online.rs"]
mod online;
#[path = "conformance/packed.rs"]
mod packed;
#[path = "conformance/paged.rs"]
mod paged;
#[path = "conformance/products.rs"]
mod products;
#[path = "conformance/reductions.rs"]
mod reductions;
#[path = "conformance/scan.rs"]
mod scan;
#[path = "conformance/scatter.rs"]
mod scatter;
#[path = "conformance/simulated.rs"]
mod simulated;
#[path = "conformance/wasm.rs"]
mod wasm_engine;
#[path = "conformance/ways.rs"]
mod ways;

use gristmill_backend::Opened;
use gristmill_backend::cpu::Isa;
use gristmill_backend::cuda::dialect::Cuda;
use gristmill_runtime::Device;
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_uop::Scalar;
use gristmill_uop::rows::FINE_GROUP;
use gristmill_uop::target::{FLAGS, Target};
use harness::{Way, asked, check};
use simulated::Simulated;
use std::sync::Arc;
use wasm_engine::wasm;
#[cfg(feature = "cuda-tests")]
use ways::cuda;
#[cfg(feature = "wgpu")]
use ways::{adapter, wgpu};
use ways::{cpu, interp, neon, on_cpu, store, threads};

/// Instantiates one test for each group of cases.
macro_rules! conformance {
    ($device:ident) => {
        mod $device {
            conformance! { @ $device
                elementwise_floats elementwise::floats; elementwise_integers elementwise::integers; elementwise_e4m3 elementwise::e4m3;
                elementwise_casts elementwise::casts; elementwise_half elementwise::half; elementwise_edges elementwise::edges;
                movement movement::cases; reductions reductions::cases; nested_reductions reductions::nested;
                decoding packed::decoding; matvec packed::matvec; matmul packed::matmul; odd_rows packed::odd_rows;
                packed_rows packed::gather; one_token_experts experts::one_token; grouped_experts experts::grouped;
                parts_of_experts experts::with_every_part;
                network network::cases; choosing network::choosing; attention attention::cases;
                long_attention attention::long; grouped_attention attention::grouped;
                quantised_prompts attention::quantised_prompts;
                attention_of_halves attention::halves; attention_in_windows attention::windows;
                attention_with_caps attention::caps;
                pages paged::cases; pages_of_halves paged::halves;
                prompts_of_halves attention::prompts; dynamic_dims dynamic::cases; states dynamic::states;
                recurrences scan::cases; custom_kernels custom::cases;
                invented_format invented::cases; integer_rows packed::integer; integer_network packed::integer_network;
                integer_attention attention::integers; integer_tiles packed::tiles; integer_rows_in_fine_groups packed::fine;
                integer_prompts packed::shared_columns; integer_pages paged::projections;
                products products::cases; scattered_sums scatter::cases; gradients gradients::cases;
            }
        }
    };
    (@ $device:ident $($test:ident $group:path;)*) => { $(
        #[test]
        fn $test() {
            use super::*;
            let mut ways = $device();
            if ways.is_empty() {
                return;
            }
            if !stringify!($test).starts_with("integer") {
                ways.iter_mut().for_each(|w| w.device.target.int8 = false);
            }
            if stringify!($test).starts_with("integer") && asked().is_none() {
                // Schedules hardly affect products: one perturbed schedule, and the cheapest for
                // every set.
                let mut perturbed = ways.iter().filter(|w| w.seed.is_some()).map(|w| w.name.clone());
                let last = perturbed.next_back();
                ways.retain(|w| w.seed.is_none() || Some(&w.name) == last.as_ref());
            }
            if ["shared_columns", "projections"].iter().any(|group| stringify!($group).ends_with(group)) {
                ways.iter_mut().for_each(|w| w.device.target = packed::with_groups(w.device.target.clone()));
            }
            if stringify!($group).ends_with("fine") {
                ways.iter_mut().for_each(|w| w.device.target.activation_group = FINE_GROUP);
            }
            if stringify!($group).starts_with("scatter") {
                ways = scatter::in_every_form(ways);
            }
            if stringify!($group).starts_with("elementwise") {
                // One kernel each, without decisions.
                ways.retain(|w| w.seed.is_none());
            }
            check($group(), ways);
        }
    )* };
}

/// Partial attention results combined by their consumer, and more of them in a separate kernel.
#[test]
fn attention_at_a_depth() {
    check(attention::deep(), threads());
}

#[cfg(feature = "cuda-tests")]
#[test]
fn cuda_attention_at_a_depth() {
    check(attention::deep(), cuda());
}

/// Kernels translated for Metal compute the same: cases of every group, some with byte products.
#[test]
fn kernels_for_metal() {
    let device: Arc<dyn Device> =
        match Simulated::for_language(metal::language(), metal::target(), store()) {
            Ok(device) => Arc::new(device),
            Err(missing) => return simulated::skip(&missing),
        };
    let way = |int8: bool| {
        let mut device = Opened::new(
            device.clone(),
            Some(&gristmill_backend::wgpu::dialect::Wgsl),
        );
        device.target.int8 = int8;
        vec![Way {
            name: format!("metal, integers {int8}"),
            device,
            seed: None,
            same_as: None,
        }]
    };
    let floats = [
        elementwise::floats(),
        elementwise::integers(),
        elementwise::e4m3(),
        elementwise::casts(),
        movement::cases(),
        reductions::cases(),
        network::cases(),
        network::choosing(),
        attention::cases(),
        dynamic::states(),
        experts::one_token(),
    ];
    check(
        floats
            .into_iter()
            .flat_map(|cases| cases.into_iter().step_by(4))
            .collect(),
        way(false),
    );
    check(
        packed::matvec().into_iter().step_by(3).collect(),
        way(false),
    );
    check(
        packed::integer()
            .into_iter()
            .step_by(5)
            .chain(attention::integers())
            .collect(),
        way(true),
    );
    check(packed::matrices(), way(true));
    // Without subgroups, several reductions share one pass through shared memory.
    let mut apart = way(false);
    apart
        .iter_mut()
        .for_each(|way| way.device.target.machine.folds = 1);
    check(packed::matmul().into_iter().step_by(9).collect(), apart);
}

/// A weight larger than the adapter's binding limit is bound in several parts.
#[cfg(feature = "wgpu")]
#[test]
fn wgpu_binds_long_weights_in_pieces() {
    use gristmill_backend::wgpu::Limited;
    use gristmill_compiler::{Cheapest, compile};
    let mut device = adapter(Limited {
        largest_binding: Some(2 << 10),
        ..Limited::default()
    });
    device.target.int8 = false;
    let formats = ["f32", "f16", "q8_0", "q4_0", "q4_k"];
    let chosen = |case: &harness::Case| {
        let is_of = |format: &&str| {
            case.name.contains(&format!("of {format},"))
                || case.name == format!("experts of {format}")
        };
        formats.iter().any(is_of)
    };
    let cases: Vec<_> = packed::matvec()
        .into_iter()
        .chain(packed::gather())
        .filter(chosen)
        .collect();
    let piece = device.target.machine.max_binding_chunk();
    let in_pieces = |case: &&harness::Case| {
        let compiled = compile(
            &case.function,
            &device.target,
            device.dialect,
            &mut Cheapest,
        );
        compiled
            .programs
            .iter()
            .any(|p| p.params.iter().any(|param| param.pieces(piece) > 1))
    };
    assert!(
        cases.len() == 2 * formats.len() && cases.iter().filter(in_pieces).count() > formats.len()
    );
    check(
        cases,
        vec![Way {
            name: "in pieces".into(),
            device,
            seed: None,
            same_as: None,
        }],
    );
}

/// Every optimisation of the CPU can be switched off.
#[test]
fn results_are_correct_without_each_optimisation() {
    let best = Isa::parse("auto").expect("an instruction set");
    let device = on_cpu(best, 2);
    let mut ways = Vec::new();
    let mut off_all = device.clone();
    for flag in FLAGS
        .iter()
        .filter(|flag| flag.acts_on(device.target.machine.kind))
    {
        let mut device = device.clone();
        (flag.off)(&mut device.target);
        (flag.off)(&mut off_all.target);
        ways.push(Way {
            name: format!("without {}", flag.name),
            device,
            seed: None,
            same_as: None,
        });
    }
    ways.push(Way {
        name: "without anything".into(),
        device: off_all,
        seed: None,
        same_as: None,
    });
    check(some_of_all(), ways);
}

/// Quantised networks, and attention.
fn some_of_all() -> Vec<harness::Case> {
    let mut cases = packed::integer_network();
    cases.retain(|c| c.name.contains("q4_0") || c.name.contains("swiglu, q6_k"));
    cases.extend(attention::cases().into_iter().take(2));
    cases
}

/// Every optimisation of a GPU can be switched off; CUDA C kernels run on the CPU.
#[test]
fn results_are_correct_without_each_optimisation_of_a_gpu() {
    let on = Target {
        threads: 64,
        ..Target::named("h200")
    };
    let mut off_all = on.clone();
    let mut targets = Vec::new();
    for flag in FLAGS.iter().filter(|flag| flag.acts_on(on.machine.kind)) {
        let mut off = on.clone();
        (flag.off)(&mut off);
        (flag.off)(&mut off_all);
        targets.push((format!("without {}", flag.name), off));
    }
    targets.push(("without anything".into(), off_all));
    let device = match Simulated::new(on, store()) {
        Ok(device) => device,
        Err(missing) => return simulated::skip(&missing),
    };
    let way = |(name, target)| {
        let device = Opened::new(Arc::new(device.with_target(target)), Some(&Cuda));
        Way {
            name,
            device,
            seed: None,
            same_as: None,
        }
    };
    let ways = targets.into_iter().map(way).collect();
    // Quantised matrices, attention, and a staged f16 KV cache.
    let mut cases: Vec<harness::Case> = some_of_all()
        .into_iter()
        .filter(|c| !c.name.contains("q6_k"))
        .collect();
    cases.extend(
        attention::halves()
            .into_iter()
            .find(|c| c.name.contains("f16")),
    );
    check(cases, ways);
}

/// Sums move by the rounding of their terms, elements that are only moved by none.
#[test]
fn rounding_moves_arithmetic_alone() {
    let case = |body: fn(&Capture)| harness::Case::new("rounding", body);
    let sum = case(|c| {
        let x = c.input("x", dims![4, 100], Scalar::F32);
        c.output("sum", (x * x).sum(&[1]) - x.sum(&[1]));
    });
    let moved = case(|c| {
        let x = c.input("x", dims![4, 100], Scalar::F32);
        c.output("x", x.permute(&[1, 0]).maximum(0.5));
    });
    let [of_sum, of_moved] = [sum, moved].map(|case| harness::rounding_error(&case, 1e-3, 4));
    assert!((1e-3..1.0).contains(&of_sum), "{of_sum}");
    assert!((5e-4..=1e-3).contains(&of_moved), "{of_moved}");
}

conformance!(cpu);
conformance!(interp);
conformance!(neon);
conformance!(threads);
conformance!(wasm);
#[cfg(feature = "cuda-tests")]
conformance!(cuda);
#[cfg(feature = "wgpu")]
conformance!(wgpu);
