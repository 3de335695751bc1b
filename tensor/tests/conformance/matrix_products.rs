//! Kernels use integer dot products, AMX tiles and MMA where the target has them.

use crate::harness::{self, Way, check};
use crate::simulated::{self, Simulated};
use crate::ways::{linear_of, on_cpu, store, with_matrices};
use crate::{attention, experts, invented, packed, reductions};
use gristmill_backend::Opened;
use gristmill_backend::cpu::{ISAS, Isa, dialect};
use gristmill_backend::cuda::dialect::Cuda;
use gristmill_uop::machine::Machine;
use gristmill_uop::target::Target;
use std::sync::Arc;

/// Contractions use integer dot products on every instruction set, for every quantised format.
///
/// Formats are those of the table and the invented ones.
#[test]
fn kernels_multiply_integers() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    use gristmill_uop::Op;
    let formats: Vec<_> = gristmill_encodings::TABLE
        .iter()
        .copied()
        .filter(|e| e.elements > 1)
        .chain(invented::ALL)
        .collect();
    for e in formats {
        for many in [false, true] {
            let function = packed::contraction(e, 32, many).function;
            for isa in ISAS {
                let target = isa.isa.target();
                let compiled = compile(
                    &function,
                    &target,
                    Some(&dialect::C as &dyn Dialect),
                    &mut Cheapest,
                );
                let graph = compiled
                    .programs
                    .iter()
                    .any(|p| p.graph.any(p.root, |_, n| n.op == Op::Dot4));
                let products = |p: &std::sync::Arc<gristmill_uop::program::Program>| {
                    p.source.contains("dot4") || p.source.contains("dot2")
                };
                let text = compiled.programs.iter().any(products);
                assert!(graph && text, "{} on {}, many {many}", e.name, isa.name);
                assert_eq!(compiled.layouts.len(), 1);
                let mut exact = target.clone();
                exact.int8 = false;
                let exact = compile(
                    &function,
                    &exact,
                    Some(&dialect::C as &dyn Dialect),
                    &mut Cheapest,
                );
                assert!(exact.layouts.is_empty() && !exact.programs.iter().any(products));
            }
        }
    }
}

/// Scores over an int8 KV cache use integer dot products, of whole vectors, on every instruction
/// set.
///
/// Without the `int8` flag there are none.
#[test]
fn scores_are_products_of_integers() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    for case in attention::integers() {
        for isa in ISAS {
            let target = isa.isa.target();
            let texts = |target: &Target| -> String {
                let compiled = compile(
                    &case.function,
                    target,
                    Some(&dialect::C as &dyn Dialect),
                    &mut Cheapest,
                );
                compiled
                    .programs
                    .iter()
                    .map(|p| p.source.as_str())
                    .collect()
            };
            let how = if target.machine.signed_bytes {
                "signed"
            } else {
                "any"
            };
            let lanes = if case.name.contains(" 20 rows") {
                4
            } else {
                target.machine.lanes
            };
            let text = texts(&target);
            assert!(
                text.contains(&format!("dot4_{how}_{lanes}(")),
                "{} on {}:\n{text}",
                case.name,
                isa.name
            );
            let exact = Target {
                int8: false,
                ..target
            };
            assert!(
                !texts(&exact).contains("dot4"),
                "{} on {}",
                case.name,
                isa.name
            );
        }
    }
}

/// Prefill kernels use AMX tiles if the machine has them and `int8` is on.
///
/// With tiles emulated by arrays, the kernels run on any CPU.
#[test]
fn tiles_are_multiplied() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let cases: Vec<_> = packed::tiles().into_iter().rev().step_by(4).collect();
    for case in &cases {
        let products = |target: &Target| {
            let compiled = compile(
                &case.function,
                target,
                Some(&dialect::C as &dyn Dialect),
                &mut Cheapest,
            );
            compiled
                .programs
                .iter()
                .any(|p| p.source.contains("TILE_PRODUCT"))
        };
        let amx = Isa::Amx.target();
        let off = Target {
            machine: Machine {
                fragments: &[],
                ..amx.machine.clone()
            },
            ..amx.clone()
        };
        let exact = Target {
            int8: false,
            ..amx.clone()
        };
        assert!(
            products(&amx) && !products(&off) && !products(&exact),
            "{}",
            case.name
        );
    }
    let device = Opened {
        target: Isa::Amx.target(),
        ..on_cpu(Isa::Plain, 2)
    };
    check(
        cases,
        vec![Way {
            name: "amx simulated".into(),
            device,
            seed: None,
            same_as: None,
        }],
    );
}

/// Every case has a kernel with f16 MMA for scores and for values, with 2 and with 8 warps.
#[test]
fn warps_multiply_halves() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let grouped = || {
        attention::grouped_halves()
            .into_iter()
            .chain(attention::window_halves())
    };
    for case in attention::halves()
        .into_iter()
        .chain(attention::prompts())
        .chain(grouped())
    {
        for threads in [64, 256] {
            let target = Target {
                threads,
                int8: false,
                ..Target::named("h200")
            };
            let compiled = compile(
                &case.function,
                &target,
                Some(&Cuda as &dyn Dialect),
                &mut Cheapest,
            );
            let loads = |source: &str| {
                source
                    .split("BARRIER;")
                    .filter(|nest| nest.contains("mma_halves("))
                    .count()
            };
            let most = compiled.programs.iter().map(|p| loads(&p.source)).max();
            assert_eq!(most, Some(2), "{} with {threads} threads", case.name);
        }
    }
    let target = Target {
        int8: false,
        ..Target::named("h200")
    };
    match Simulated::new(target, store()) {
        Ok(device) => {
            let device = Opened::new(Arc::new(device), Some(&Cuda));
            let cases = attention::halves().into_iter().chain(attention::prompts());
            let cases = cases.chain(grouped()).collect();
            check(
                cases,
                vec![Way {
                    name: "256 threads".into(),
                    device,
                    seed: None,
                    same_as: None,
                }],
            );
        }
        Err(missing) => simulated::skip(&missing),
    }
}

/// GPUs with fewer features compute the same: MMA of depth 8 only, or a made-up minimal GPU.
///
/// The latter has subgroups of 64, 32 KiB of shared memory, no byte products, and loads of at least
/// two or four bytes. Kernels contain no other products; the spec of linear code checks the load
/// width.
#[test]
fn gpus_with_less_compute_the_same() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let t4 = Target {
        threads: 128,
        ..Target::named("t4")
    };
    let invented = Machine {
        name: "invented".into(),
        subgroup: 64,
        shared_per_unit: 32 << 10,
        shared_per_workgroup: 32 << 10,
        fragments: &[],
        dot4: false,
        units: 24,
        least_bytes: 2,
        part_writes: false,
        ..Machine::named("h200").expect("a row")
    };
    let words = Target {
        threads: 64,
        ..Target::new(Machine {
            name: "words".into(),
            least_bytes: 4,
            ..invented.clone()
        })
    };
    let invented = Target {
        threads: 128,
        ..Target::new(invented)
    };
    type Cases = fn() -> Vec<harness::Case>;
    let with_bytes: Cases = || {
        [packed::integer(), attention::prompts()]
            .into_iter()
            .flatten()
            .collect()
    };
    let floats: Cases = || {
        let all = [
            reductions::cases(),
            packed::matvec(),
            packed::matmul(),
            experts::grouped(),
            attention::cases(),
        ];
        all.into_iter().flatten().collect()
    };
    for (target, cases) in [
        (t4, with_bytes),
        (invented, floats),
        (words, packed::matvec),
    ] {
        let bytes = |p: &gristmill_uop::program::Program| p.source.contains("dot4");
        let (mut products, mut products_of_halves) = (0, 0);
        for case in cases() {
            let compiled = compile(
                &case.function,
                &target,
                Some(&Cuda as &dyn Dialect),
                &mut Cheapest,
            );
            products += compiled.programs.iter().filter(|p| bytes(p)).count();
            for p in &compiled.programs {
                let halves = p.source.contains("mma_halves_8(");
                products_of_halves += usize::from(halves);
                let others = p.source.replace("mma_halves_8(", "").contains("mma");
                assert!(!others, "{} for {}:\n{}", case.name, target.name, p.source);
                assert!(
                    p.scratch <= target.machine.shared_per_workgroup,
                    "{} for {}",
                    case.name,
                    target.name
                );
            }
        }
        assert_eq!(products > 0, target.machine.dot4, "{}", target.name);
        assert_eq!(
            products_of_halves > 0,
            !target.machine.fragments.is_empty(),
            "{}",
            target.name
        );
        match Simulated::new(target.clone(), store()) {
            Ok(device) => {
                let device = Opened::new(Arc::new(device), Some(&Cuda));
                check(
                    cases(),
                    vec![Way {
                        name: target.name,
                        device,
                        seed: None,
                        same_as: None,
                    }],
                );
            }
            Err(missing) => simulated::skip(&missing),
        }
    }
}

/// Several warps share the columns of a weight by wgmma.
///
/// The last case does not: small tiles of tokens with data-dependent weights.
#[test]
fn several_warps_share_columns() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let target = packed::with_groups(Target::named("h200"));
    let cases = packed::shared_columns();
    for (i, case) in cases.iter().enumerate() {
        let compiled = compile(
            &case.function,
            &target,
            Some(&Cuda as &dyn Dialect),
            &mut Cheapest,
        );
        let shared = compiled
            .programs
            .iter()
            .any(|p| p.source.contains(" = wgmma_"));
        assert_eq!(shared, i + 1 < cases.len(), "{}", case.name);
    }
}

/// Subgroup matrix products are used at 16 by 16 and 8 by 8.
///
/// Subgroups of 32 or 64 threads count as 64.
#[test]
fn subgroups_multiply_matrices() {
    use gristmill_backend::wgpu::dialect::Wgsl;
    use gristmill_compiler::{Cheapest, Dialect, compile};
    for (name, threads) in [("rx7900xtx", 128), ("m3-max", 64)] {
        let target = with_matrices(name, threads);
        for case in packed::matrices() {
            let compiled = compile(
                &case.function,
                &target,
                Some(&Wgsl as &dyn Dialect),
                &mut Cheapest,
            );
            let multiplies = compiled
                .programs
                .iter()
                .any(|p| p.source.contains("coopMultiplyAdd("));
            assert!(multiplies, "{} for {name}", case.name);
        }
        check(packed::matrices(), linear_of(vec![(name, target)]));
    }
}

/// The expert index of a tile is computed once per stage of its weight, cooperatively by lanes.
#[test]
fn subgroups_multiply_matrices_of_experts() {
    use gristmill_backend::wgpu::dialect::Wgsl;
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let target = with_matrices("rx7900xtx", 128);
    let case =
        || vec![experts::grouped_of([64; 2], &gristmill_encodings::Q4_0, 32, 40).renamed("by 32")];
    let compiled = compile(
        &case()[0].function,
        &target,
        Some(&Wgsl as &dyn Dialect),
        &mut Cheapest,
    );
    let has = |source: &str| {
        ["coopMultiplyAdd(", "subgroupShuffleXor(", "pairs0["]
            .iter()
            .all(|s| source.contains(s))
    };
    assert!(compiled.programs.iter().any(|p| has(&p.source)));
    check(case(), linear_of(vec![("rx7900xtx", target)]));
}

/// With f16 queries, a KV chunk is copied before the grid-dependency wait.
///
/// The workgroup uses more than half of a multiprocessor's shared memory.
#[test]
fn a_cache_is_copied_before_the_wait() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let target = Target {
        int8: false,
        ..Target::named("h200")
    };
    for case in attention::halves() {
        let compiled = compile(
            &case.function,
            &target,
            Some(&Cuda as &dyn Dialect),
            &mut Cheapest,
        );
        let early = |source: &str| {
            source
                .split("PREDECESSORS_ENDED")
                .next()
                .is_some_and(|s| s.contains("COPY("))
        };
        let found: Vec<_> = compiled
            .programs
            .iter()
            .filter(|p| early(&p.source))
            .collect();
        assert_eq!(
            found.len(),
            case.name.contains("f16") as usize,
            "{}",
            case.name
        );
        assert!(
            found
                .iter()
                .all(|p| 2 * p.scratch > target.machine.shared_per_workgroup),
            "{}",
            case.name
        );
    }
}
