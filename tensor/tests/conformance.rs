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
#[path = "conformance/harness.rs"]
mod harness;
#[path = "conformance/invented.rs"]
mod invented;
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

use emulated::{Emulated, Emulator};
use gristmill_backend::Opened;
use gristmill_backend::cpu::{Cc, CpuDevice, ISAS, Isa, dialect};
use gristmill_backend::cuda::dialect::Cuda;
use gristmill_backend::interp::InterpDevice;
use gristmill_backend::interp::linear::LinearDevice;
use gristmill_runtime::Device;
use gristmill_runtime::store::Store;
use gristmill_uop::machine::Machine;
use gristmill_uop::target::{FLAGS, Target};
use harness::{Way, asked, check, seeds};
use simulated::Simulated;
use std::sync::Arc;

/// The interpreter: the cheapest schedule and perturbed ones.
fn interp() -> Vec<Way> {
    let device = Opened::new(Arc::new(InterpDevice::new()), None);
    let way = |seed: Option<u64>| {
        let name = seed.map_or("interp".into(), |s| format!("interp, seed {s}"));
        Way {
            name,
            device: device.clone(),
            seed,
            same_as: None,
        }
    };
    std::iter::once(None)
        .chain(seeds(2).map(Some))
        .map(way)
        .collect()
}

/// Workers assumed by perturbed CPU schedules, whatever this machine has: predicted costs depend on
/// the number, and a seed must give the same schedule everywhere.
const WORKERS: usize = 16;

/// Interpreted linear code: vectors of three instruction sets, and 64 threads of a GPU.
fn linear() -> Vec<Way> {
    linear_of(linear_targets())
}

fn linear_targets() -> Vec<(&'static str, Target)> {
    let isa = |name: &str| {
        ISAS.iter()
            .find(|i| i.name == name)
            .expect("an instruction set")
            .isa
            .target_of(WORKERS)
    };
    vec![
        ("avx512vnni", isa("avx512vnni")),
        ("avx2", isa("avx2")),
        ("amx", isa("amx")),
        (
            "64 threads",
            Target {
                threads: 64,
                ..Target::named("h200")
            },
        ),
    ]
}

fn linear_of(targets: Vec<(&str, Target)>) -> Vec<Way> {
    let ways = |(name, target): (&str, Target)| {
        let device = Opened::new(Arc::new(LinearDevice::new(target)), None);
        let way = |seed: Option<u64>| {
            let name = seed.map_or(format!("linear, {name}"), |s| {
                format!("linear, seed {s}, {name}")
            });
            Way {
                name,
                device: device.clone(),
                seed,
                same_as: None,
            }
        };
        std::iter::once(None)
            .chain(seeds(0).map(Some))
            .map(way)
            .collect::<Vec<Way>>()
    };
    targets.into_iter().flat_map(ways).collect()
}

/// The tests' kernel store, which persists between runs.
///
/// It is in the temporary folder if this machine has no Cargo target directory.
fn store() -> Store {
    let target = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = match target.is_dir() {
        true => target.join("kernels"),
        false => std::env::temp_dir().join("gristmill-conformance"),
    };
    Store::open(path, 1 << 30).expect("a store")
}

fn on_cpu(isa: Isa, threads: usize) -> Opened {
    compiled_by(Cc::find().expect("a C compiler"), isa, threads)
}

fn compiled_by(cc: Cc, isa: Isa, threads: usize) -> Opened {
    Opened::new(
        Arc::new(CpuDevice::with(threads, isa, cc, store()).expect("a cpu")),
        Some(&dialect::C),
    )
}

/// Optimisation level of the C compiler for correctness tests: hundreds of thousands of kernels
/// that run for microseconds. `-O2` compiles 4x slower, 7x for the plain path. Only the cheapest
/// schedules for this CPU's best instruction set are compiled as in production.
const TEXT_ALONE: &str = "-O0";

/// The CPU: its best instruction set with 1, 2 and 3 threads, AVX2, the plain path; perturbed too.
fn cpu() -> Vec<Way> {
    let best = Isa::parse("auto").expect("an instruction set");
    let mut ways = Vec::new();
    for threads in 1..=3 {
        let name = format!("{} threads {threads}", best.name());
        ways.push(Way {
            name,
            device: on_cpu(best, threads),
            seed: None,
            same_as: Some("threads"),
        });
    }
    let text_alone = |isa: Isa| {
        compiled_by(
            Cc::find().expect("a C compiler").with_flag(TEXT_ALONE),
            isa,
            2,
        )
    };
    let perturbed = |isa: Isa, count: u64| {
        let mut device = text_alone(isa);
        device.target = isa.target_of(WORKERS);
        let way = move |seed| {
            let name = format!("{}, seed {seed}", isa.name());
            Way {
                name,
                device: device.clone(),
                seed: Some(seed),
                same_as: None,
            }
        };
        seeds(count).map(way)
    };
    for info in ISAS
        .iter()
        .filter(|i| ["avx2", "plain"].contains(&i.name) && i.isa != best)
    {
        if !info.isa.available() {
            println!("skipped: this machine has no {}", info.name);
            continue;
        }
        ways.push(Way {
            name: info.name.into(),
            device: text_alone(info.isa),
            seed: None,
            same_as: None,
        });
        ways.extend(perturbed(info.isa, 1));
    }
    ways.extend(perturbed(best, 2));
    ways
}

/// Emulated NEON with dot product: one schedule for 1 and 3 workers, and perturbed ones.
///
/// Empty if the tools are missing.
fn neon() -> Vec<Way> {
    let emulator = match Emulator::start(&store()) {
        Ok(emulator) => Arc::new(emulator),
        Err(missing) => {
            emulated::skip(&missing);
            return vec![];
        }
    };
    let device = Emulated::new(emulator, store()).with_flag(TEXT_ALONE);
    let opened = |device: Emulated| Opened::new(Arc::new(device), Some(&dialect::C));
    let by = |n: usize| {
        let name = format!("neon workers {n}");
        Way {
            name,
            device: opened(device.with_workers(n)),
            seed: None,
            same_as: Some("workers"),
        }
    };
    let mut perturbed = opened(device.with_workers(2));
    perturbed.target = Isa::Neon.target_of(WORKERS);
    let way = |s| Way {
        name: format!("neon, seed {s}"),
        device: perturbed.clone(),
        seed: Some(s),
        same_as: None,
    };
    [1, 3]
        .into_iter()
        .map(by)
        .chain(seeds(2).map(way))
        .collect()
}

/// CUDA C kernels run on the CPU: the cheapest schedule and a perturbed one.
///
/// A workgroup's threads run in turn, so 64 threads expose the same errors as 256. Empty if there
/// is no C++ compiler.
fn threads() -> Vec<Way> {
    let target = Target {
        threads: 64,
        ..Target::named("h200")
    };
    let device: Arc<dyn Device> = match Simulated::new(target, store()) {
        Ok(device) => Arc::new(device),
        Err(missing) => {
            simulated::skip(&missing);
            return vec![];
        }
    };
    let way = |seed: Option<u64>| {
        let name = seed.map_or("threads".into(), |s| format!("threads, seed {s}"));
        Way {
            name,
            device: Opened::new(device.clone(), Some(&Cuda)),
            seed,
            same_as: None,
        }
    };
    std::iter::once(None)
        .chain(seeds(1).map(Some))
        .map(way)
        .collect()
}

/// The first GPU: its cheapest schedule twice, with bit-identical results, and perturbed ones.
#[cfg(feature = "cuda-tests")]
fn cuda() -> Vec<Way> {
    let device = Arc::new(gristmill_backend::cuda::CudaDevice::with(0, store()).expect("a GPU"));
    let row = gristmill_backend::find("cuda").expect("a row").row;
    let device = Opened::new(device, row.dialect);
    let way = |name: String, seed: Option<u64>, same_as: Option<&'static str>| Way {
        name,
        device: device.clone(),
        seed,
        same_as,
    };
    let again = ["cuda", "cuda again"].map(|name| way(name.into(), None, Some("cuda")));
    again
        .into_iter()
        .chain(seeds(2).map(|s| way(format!("cuda, seed {s}"), Some(s), None)))
        .collect()
}

/// The first adapter, with these limits.
#[cfg(feature = "wgpu")]
fn adapter(limited: gristmill_backend::wgpu::Limited) -> Opened {
    use gristmill_backend::wgpu::{WgpuDevice, dialect::Wgsl};
    let device = WgpuDevice::with((0, None), store(), &limited).expect("an adapter");
    Opened::new(Arc::new(device), Some(&Wgsl))
}

/// The first adapter: its cheapest schedule twice, with bit-identical results, and a perturbed one.
///
/// Also its cheapest schedule without subgroups, with a subgroup width halved, and without matrix
/// products, for features that it has.
#[cfg(feature = "wgpu")]
fn wgpu() -> Vec<Way> {
    use gristmill_backend::wgpu::Limited;
    let device = adapter(Limited::default());
    let way = |name: String, seed: Option<u64>, same_as: Option<&'static str>| Way {
        name,
        device: device.clone(),
        seed,
        same_as,
    };
    let again = ["wgpu", "wgpu again"].map(|name| way(name.into(), None, Some("wgpu")));
    let machine = &device.target.machine;
    let less = [
        (
            "without subgroups",
            machine.folds > 1,
            Limited {
                no_subgroups: true,
                ..Limited::default()
            },
        ),
        (
            "narrow subgroups",
            machine.folds > 1,
            Limited {
                subgroup: Some(machine.subgroup / 2),
                ..Limited::default()
            },
        ),
        (
            "without matrices",
            machine.tile_fragment().is_some(),
            Limited {
                no_matrices: true,
                ..Limited::default()
            },
        ),
    ];
    let less = less
        .into_iter()
        .filter(|(_, has, _)| *has)
        .map(|(name, _, limited)| {
            let device = adapter(limited);
            Way {
                name: format!("wgpu, {name}"),
                device,
                seed: None,
                same_as: None,
            }
        });
    let perturbed = seeds(1).map(|s| way(format!("wgpu, seed {s}"), Some(s), None));
    again.into_iter().chain(less).chain(perturbed).collect()
}

/// Interpreted linear code against the evaluator.
///
/// Threads run one after the other, slowly, so there are few groups of cases: sums, stages and
/// loops of each kind of machine, and a GPU warp's products, of halves and of bytes.
mod linear {
    use super::*;
    use harness::Case;

    fn all(cases: Vec<Case>) {
        let mut ways = linear();
        ways.iter_mut().for_each(|w| w.device.target.int8 = false);
        check(cases, ways);
    }
    #[test]
    fn matvec() {
        all(packed::matvec());
    }
    #[test]
    fn matmul() {
        all(packed::matmul().into_iter().step_by(5).collect());
    }
    #[test]
    fn experts() {
        all(experts::one_token().into_iter().step_by(5).collect());
    }
    #[test]
    fn attention() {
        all(attention::cases()
            .into_iter()
            .chain(attention::caps().into_iter().take(4))
            .collect());
    }
    #[test]
    fn products_of_halves() {
        let mut ways = linear();
        ways.retain(|w| w.name.ends_with("threads"));
        ways.iter_mut().for_each(|w| w.device.target.int8 = false);
        check(attention::halves().into_iter().take(1).collect(), ways);
    }
    /// Kernels with many stages, on GPU threads only; the interpreter checks their barriers.
    fn by_threads(cases: Vec<Case>) {
        let mut ways = linear();
        ways.retain(|w| w.name.ends_with("threads"));
        check(cases, ways);
    }
    /// Machines with 32-bit accesses only, whose subgroups reduce over 16 lanes or not at all.
    fn of_words() -> Vec<Way> {
        let some = with_matrices("arc-b580", 64);
        let mut none = some.clone();
        none.machine.folds = 1;
        linear_of(vec![
            ("16 of 64 threads fold", some),
            ("64 threads that meet", none),
        ])
    }
    /// Scatter-add of words and halves updates 32-bit words there, in some variants atomically.
    #[test]
    fn sums_scattered_in_words() {
        let mut ways = scatter::in_every_form(of_words());
        // The compared variant reads narrow types, whose last word extends past the buffer's end.
        ways.retain(|w| w.name.contains("form") && !w.name.ends_with("form 0"));
        check(scatter::cases(), ways);
    }
    #[test]
    fn words_alone() {
        let cases = [
            elementwise::edges(),
            elementwise::half(),
            elementwise::casts(),
            reductions::cases(),
            network::choosing(),
        ];
        let mut cases: Vec<Case> = cases
            .into_iter()
            .flat_map(|cases| cases.into_iter().step_by(2))
            .collect();
        // The last word of a narrow type extends past the end of the interpreter's memory.
        cases.retain(|case| !case.name.contains("[7]"));
        check(cases, of_words());
    }
    #[test]
    fn networks() {
        by_threads(network::cases());
    }
    #[test]
    fn choosing() {
        by_threads(network::choosing());
    }
    #[test]
    fn states() {
        by_threads(dynamic::states());
    }
    #[test]
    fn scattered_sums() {
        check(scatter::cases(), scatter::in_every_form(linear()));
    }
    #[test]
    fn products() {
        let mut ways = linear();
        ways.retain(|w| w.name.ends_with("threads") || w.name.ends_with("amx"));
        check(products::cases(), ways);
    }
    #[test]
    fn products_of_tiles() {
        let mut ways = linear();
        ways.retain(|w| w.name.ends_with("amx"));
        check(
            packed::tiles()
                .into_iter()
                .step_by(4)
                .chain(packed::tiles().into_iter().rev().take(2))
                .collect(),
            ways,
        );
    }
    #[test]
    fn products_of_several_warps() {
        // Every third case covers each kind.
        let ways = linear_of(vec![(
            "256 threads",
            packed::with_groups(Target::named("h200")),
        )]);
        check(
            packed::shared_columns().into_iter().step_by(3).collect(),
            ways,
        );
    }
    #[test]
    fn pages_before_a_product() {
        check(
            paged::projections(),
            linear_of(vec![(
                "256 threads",
                packed::with_groups(Target::named("h200")),
            )]),
        );
    }
    #[test]
    fn products_of_bytes() {
        check(
            attention::integers()
                .into_iter()
                .chain(packed::integer())
                .step_by(7)
                .collect(),
            linear(),
        );
    }
}

/// Instantiates one test for each group of cases.
macro_rules! conformance {
    ($device:ident) => {
        mod $device {
            conformance! { @ $device
                elementwise_floats elementwise::floats; elementwise_integers elementwise::integers;
                elementwise_casts elementwise::casts; elementwise_half elementwise::half; elementwise_edges elementwise::edges;
                movement movement::cases; reductions reductions::cases; nested_reductions reductions::nested;
                decoding packed::decoding; matvec packed::matvec; matmul packed::matmul; odd_rows packed::odd_rows;
                packed_rows packed::gather; one_token_experts experts::one_token; grouped_experts experts::grouped;
                parts_of_experts experts::with_every_part;
                network network::cases; choosing network::choosing; attention attention::cases;
                long_attention attention::long; grouped_attention attention::grouped;
                attention_of_halves attention::halves; attention_in_windows attention::windows;
                attention_with_caps attention::caps;
                pages paged::cases; pages_of_halves paged::halves;
                prompts_of_halves attention::prompts; dynamic_dims dynamic::cases; states dynamic::states;
                recurrences scan::cases; custom_kernels custom::cases;
                invented_format invented::cases; integer_rows packed::integer; integer_network packed::integer_network;
                integer_attention attention::integers; integer_tiles packed::tiles;
                integer_prompts packed::shared_columns; integer_pages paged::projections;
                products products::cases; scattered_sums scatter::cases;
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

/// A GPU as described by a wgpu adapter, with few threads so that interpretation is fast.
///
/// It has one unit, so that output tiles have their largest size.
fn with_matrices(name: &str, threads: usize) -> Target {
    let mut target = Target::new(
        gristmill_uop::adapter::Adapter::named(name)
            .expect("a row")
            .machine(),
    );
    target.machine.units = 1;
    Target { threads, ..target }
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
    let piece = device.target.machine.piece();
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

conformance!(cpu);
conformance!(interp);
conformance!(neon);
conformance!(threads);
#[cfg(feature = "cuda-tests")]
conformance!(cuda);
#[cfg(feature = "wgpu")]
conformance!(wgpu);
