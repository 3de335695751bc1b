//! The conformance suite: every device computes what the tensor-level evaluator says, however its schedule is chosen.
//!
//! A case is a captured function with random inputs. `conformance!(name, ways)` instantiates the whole suite for a device.
//! The kernels of `neon` run as AArch64 code in an emulator: without the tools that takes, its tests say so and pass, or fail where
//! `GRISTMILL_REQUIRE_NEON` is set (the gate sets it).
//! `GRISTMILL_PERTURB=n` runs n perturbed schedules instead of one or two, `GRISTMILL_CASE=text` only the cases whose names contain the text;
//! `GRISTMILL_WAY=text` only the ways whose names do, with `GRISTMILL_SOURCE` set the kernels are printed. A seed and a case make the same schedule, whatever else runs.
//! `cargo xtask conformance` is the long run, and counts which alternatives were taken.
//!
//! `cuda` needs a GPU and the feature `cuda-tests`. Where there is a GPU, or a C compiler on more cores, and no Rust, carry the test's binary there:
//! `cargo test -p gristmill-tensor --features cuda-tests --test conformance --no-run` names it, and `conformance cuda::` runs it, or `xtask conformance --binary`.

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
        Way { name, device: device.clone(), seed, same_as: None }
    };
    std::iter::once(None).chain(seeds(2).map(Some)).map(way).collect()
}

/// Workers that perturbed schedules of a processor are planned for, however many cores this one has: what they would be priced at decides which are told apart, and
/// a seed makes the same schedule everywhere.
const WORKERS: usize = 16;

/// Linear code, interpreted: vectors of two instruction sets, and 64 threads of a GPU.
fn linear() -> Vec<Way> {
    linear_of(linear_targets())
}

fn linear_targets() -> Vec<(&'static str, Target)> {
    let isa = |name: &str| ISAS.iter().find(|i| i.name == name).expect("an instruction set").isa.target_of(WORKERS);
    vec![
        ("avx512vnni", isa("avx512vnni")),
        ("avx2", isa("avx2")),
        ("amx", isa("amx")),
        ("64 threads", Target { threads: 64, ..Target::named("h200") }),
    ]
}

fn linear_of(targets: Vec<(&str, Target)>) -> Vec<Way> {
    let ways = |(name, target): (&str, Target)| {
        let device = Opened::new(Arc::new(LinearDevice::new(target)), None);
        let way = |seed: Option<u64>| {
            let name = seed.map_or(format!("linear, {name}"), |s| format!("linear, seed {s}, {name}"));
            Way { name, device: device.clone(), seed, same_as: None }
        };
        std::iter::once(None).chain(seeds(0).map(Some)).map(way).collect::<Vec<Way>>()
    };
    targets.into_iter().flat_map(ways).collect()
}

/// The tests' own store: what was compiled once is not compiled again. A machine that the binary was carried to does not have the target directory.
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
    Opened::new(Arc::new(CpuDevice::with(threads, isa, cc, store()).expect("a cpu")), Some(&dialect::C))
}

/// What the C compiler optimises where it is the text that is tested, in hundreds of thousands of kernels that run for microseconds: nothing. `-O2` takes four times
/// as long to compile them, seven for the plain path. The cheapest schedules of this machine's best set of instructions are compiled as those of a model.
const TEXT_ALONE: &str = "-O0";

/// The processor: its best instruction set with 1, 2 and 3 threads, AVX2 and the plain path; perturbed schedules.
fn cpu() -> Vec<Way> {
    let best = Isa::parse("auto").expect("an instruction set");
    let mut ways = Vec::new();
    for threads in 1..=3 {
        let name = format!("{} threads {threads}", best.name());
        ways.push(Way { name, device: on_cpu(best, threads), seed: None, same_as: Some("threads") });
    }
    let text_alone = |isa: Isa| compiled_by(Cc::find().expect("a C compiler").with_flag(TEXT_ALONE), isa, 2);
    let perturbed = |isa: Isa, count: u64| {
        let mut device = text_alone(isa);
        device.target = isa.target_of(WORKERS);
        let way = move |seed| {
            let name = format!("{}, seed {seed}", isa.name());
            Way { name, device: device.clone(), seed: Some(seed), same_as: None }
        };
        seeds(count).map(way)
    };
    for info in ISAS.iter().filter(|i| ["avx2", "plain"].contains(&i.name) && i.isa != best) {
        if !info.isa.available() {
            println!("skipped: this machine has no {}", info.name);
            continue;
        }
        ways.push(Way { name: info.name.into(), device: text_alone(info.isa), seed: None, same_as: None });
        ways.extend(perturbed(info.isa, 1));
    }
    ways.extend(perturbed(best, 2));
    ways
}

/// NEON with dot product, emulated: one schedule shared among 1 and 3 workers, perturbed schedules. None without the tools.
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
        Way { name, device: opened(device.with_workers(n)), seed: None, same_as: Some("workers") }
    };
    let mut perturbed = opened(device.with_workers(2));
    perturbed.target = Isa::Neon.target_of(WORKERS);
    let way = |s| Way { name: format!("neon, seed {s}"), device: perturbed.clone(), seed: Some(s), same_as: None };
    [1, 3].into_iter().map(by).chain(seeds(2).map(way)).collect()
}

/// Kernels of CUDA C, run on the processor: the cheapest schedule and one that is perturbed. A workgroup's threads take turns, so that 64 of them
/// show what 256 do. None without a C++ compiler.
fn threads() -> Vec<Way> {
    let target = Target { threads: 64, ..Target::named("h200") };
    let device: Arc<dyn Device> = match Simulated::new(target, store()) {
        Ok(device) => Arc::new(device),
        Err(missing) => {
            simulated::skip(&missing);
            return vec![];
        }
    };
    let way = |seed: Option<u64>| {
        let name = seed.map_or("threads".into(), |s| format!("threads, seed {s}"));
        Way { name, device: Opened::new(device.clone(), Some(&Cuda)), seed, same_as: None }
    };
    std::iter::once(None).chain(seeds(1).map(Some)).map(way).collect()
}

/// The first GPU: its cheapest schedule twice, to the same bits; perturbed ones.
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
    again.into_iter().chain(seeds(2).map(|s| way(format!("cuda, seed {s}"), Some(s), None))).collect()
}

/// The first adapter, as if it had no more than that.
#[cfg(feature = "wgpu")]
fn adapter(limited: gristmill_backend::wgpu::Limited) -> Opened {
    use gristmill_backend::wgpu::{WgpuDevice, dialect::Wgsl};
    let device = WgpuDevice::with((0, None), store(), &limited).expect("an adapter");
    Opened::new(Arc::new(device), Some(&Wgsl))
}

/// The first adapter: its cheapest schedule twice, to the same bits, and one that is perturbed; the cheapest without subgroups, with such as are counted half as wide, and without products of matrices,
/// where it has them.
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
        ("without subgroups", machine.folds > 1, Limited { no_subgroups: true, ..Limited::default() }),
        ("narrow subgroups", machine.folds > 1, Limited { subgroup: Some(machine.subgroup / 2), ..Limited::default() }),
        ("without matrices", machine.tile_fragment().is_some(), Limited { no_matrices: true, ..Limited::default() }),
    ];
    let less = less.into_iter().filter(|(_, has, _)| *has).map(|(name, _, limited)| {
        let device = adapter(limited);
        Way { name: format!("wgpu, {name}"), device, seed: None, same_as: None }
    });
    let perturbed = seeds(1).map(|s| way(format!("wgpu, seed {s}"), Some(s), None));
    again.into_iter().chain(less).chain(perturbed).collect()
}

/// Linear code means what the evaluator says. A few groups of cases, because threads run one after the other, slowly: the sums, stages and loops of
/// each kind of machine, and on a GPU the products of a warp, of halves and of bytes.
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
        all(attention::cases().into_iter().chain(attention::caps().into_iter().take(4)).collect());
    }
    #[test]
    fn products_of_halves() {
        let mut ways = linear();
        ways.retain(|w| w.name.ends_with("threads"));
        ways.iter_mut().for_each(|w| w.device.target.int8 = false);
        check(attention::halves().into_iter().take(1).collect(), ways);
    }
    /// By threads alone, whose barriers the interpreter sees: kernels of many stages.
    fn by_threads(cases: Vec<Case>) {
        let mut ways = linear();
        ways.retain(|w| w.name.ends_with("threads"));
        check(cases, ways);
    }
    /// Machines that compute with words alone, of whose threads some or no neighbours fold values.
    fn of_words() -> Vec<Way> {
        let some = with_matrices("arc-b580", 64);
        let mut none = some.clone();
        none.machine.folds = 1;
        linear_of(vec![("16 of 64 threads fold", some), ("64 threads that meet", none)])
    }
    /// Sums of words and of halves are updates of words there, of which some exclude one another.
    #[test]
    fn sums_scattered_in_words() {
        let mut ways = scatter::in_every_form(of_words());
        // Comparisons read narrow numbers, whose last word reaches beyond them.
        ways.retain(|w| w.name.contains("form") && !w.name.ends_with("form 0"));
        check(scatter::cases(), ways);
    }
    #[test]
    fn words_alone() {
        let cases =
            [elementwise::edges(), elementwise::half(), elementwise::casts(), reductions::cases(), network::choosing()];
        let mut cases: Vec<Case> = cases.into_iter().flat_map(|cases| cases.into_iter().step_by(2)).collect();
        // The last word of narrow numbers reaches beyond them, and the interpreter's memory has no more.
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
        check(packed::tiles().into_iter().step_by(4).chain(packed::tiles().into_iter().rev().take(2)).collect(), ways);
    }
    #[test]
    fn products_of_several_warps() {
        // Each kind once.
        let ways = linear_of(vec![("256 threads", packed::with_groups(Target::named("h200")))]);
        check(packed::shared_columns().into_iter().step_by(3).collect(), ways);
    }
    #[test]
    fn pages_before_a_product() {
        check(paged::projections(), linear_of(vec![("256 threads", packed::with_groups(Target::named("h200")))]));
    }
    #[test]
    fn products_of_bytes() {
        check(attention::integers().into_iter().chain(packed::integer()).step_by(7).collect(), linear());
    }
}

/// One test for each group of cases.
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
                // What is read and multiplied hardly depends on the schedule: one that is perturbed, and the cheapest on every set.
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
                // One kernel each, nothing to decide.
                ways.retain(|w| w.seed.is_none());
            }
            check($group(), ways);
        }
    )* };
}

/// Contractions become integer products in the kernels of every set of instructions, for every format of whole numbers: those of the table
/// and those that are invented here.
#[test]
fn kernels_multiply_integers() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    use gristmill_uop::Op;
    let formats: Vec<_> =
        gristmill_encodings::TABLE.iter().copied().filter(|e| e.elements > 1).chain(invented::ALL).collect();
    for e in formats {
        for many in [false, true] {
            let function = packed::contraction(e, 32, many).function;
            for isa in ISAS {
                let target = isa.isa.target();
                let compiled = compile(&function, &target, Some(&dialect::C as &dyn Dialect), &mut Cheapest);
                let graph = compiled.programs.iter().any(|p| p.graph.any(p.root, |_, n| n.op == Op::Dot4));
                let products = |p: &std::sync::Arc<gristmill_uop::program::Program>| {
                    p.source.contains("dot4") || p.source.contains("dot2")
                };
                let text = compiled.programs.iter().any(products);
                assert!(graph && text, "{} on {}, many {many}", e.name, isa.name);
                assert_eq!(compiled.layouts.len(), 1);
                let mut exact = target.clone();
                exact.int8 = false;
                let exact = compile(&function, &exact, Some(&dialect::C as &dyn Dialect), &mut Cheapest);
                assert!(exact.layouts.is_empty() && !exact.programs.iter().any(products));
            }
        }
    }
}

/// Scores over a cache of bytes are products of integers in the kernels of every set of instructions, whole vectors of them, and no others where they are
/// switched off.
#[test]
fn scores_are_products_of_integers() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    for case in attention::integers() {
        for isa in ISAS {
            let target = isa.isa.target();
            let texts = |target: &Target| -> String {
                let compiled = compile(&case.function, target, Some(&dialect::C as &dyn Dialect), &mut Cheapest);
                compiled.programs.iter().map(|p| p.source.as_str()).collect()
            };
            let how = if target.machine.signed_bytes { "signed" } else { "any" };
            let lanes = if case.name.contains(" 20 rows") { 4 } else { target.machine.lanes };
            let text = texts(&target);
            assert!(text.contains(&format!("dot4_{how}_{lanes}(")), "{} on {}:\n{text}", case.name, isa.name);
            let exact = Target { int8: false, ..target };
            assert!(!texts(&exact).contains("dot4"), "{} on {}", case.name, isa.name);
        }
    }
}

/// Products of tiles are in kernels for prompts where the machine has them and they are not switched off; with tiles as arrays they run on any processor.
#[test]
fn tiles_are_multiplied() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let cases: Vec<_> = packed::tiles().into_iter().rev().step_by(4).collect();
    for case in &cases {
        let products = |target: &Target| {
            let compiled = compile(&case.function, target, Some(&dialect::C as &dyn Dialect), &mut Cheapest);
            compiled.programs.iter().any(|p| p.source.contains("TILE_PRODUCT"))
        };
        let amx = Isa::Amx.target();
        let off = Target { machine: Machine { fragments: &[], ..amx.machine.clone() }, ..amx.clone() };
        let exact = Target { int8: false, ..amx.clone() };
        assert!(products(&amx) && !products(&off) && !products(&exact), "{}", case.name);
    }
    let device = Opened { target: Isa::Amx.target(), ..on_cpu(Isa::Plain, 2) };
    check(cases, vec![Way { name: "amx simulated".into(), device, seed: None, same_as: None }]);
}

/// A workgroup of eight warps computes the same, and warps do it: in kernels of every such case, for scores and for values.
#[test]
fn warps_multiply_halves() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let grouped = || attention::grouped_halves().into_iter().chain(attention::window_halves());
    for case in attention::halves().into_iter().chain(attention::prompts()).chain(grouped()) {
        for threads in [64, 256] {
            let target = Target { threads, int8: false, ..Target::named("h200") };
            let compiled = compile(&case.function, &target, Some(&Cuda as &dyn Dialect), &mut Cheapest);
            let loads = |source: &str| source.split("BARRIER;").filter(|nest| nest.contains("mma_halves(")).count();
            let most = compiled.programs.iter().map(|p| loads(&p.source)).max();
            assert_eq!(most, Some(2), "{} with {threads} threads", case.name);
        }
    }
    let target = Target { int8: false, ..Target::named("h200") };
    match Simulated::new(target, store()) {
        Ok(device) => {
            let device = Opened::new(Arc::new(device), Some(&Cuda));
            let cases = attention::halves().into_iter().chain(attention::prompts());
            let cases = cases.chain(grouped()).collect();
            check(cases, vec![Way { name: "256 threads".into(), device, seed: None, same_as: None }]);
        }
        Err(missing) => simulated::skip(&missing),
    }
}

/// A GPU with products of halves of eight terms alone, and one that nobody makes: subgroups of 64, 32 KiB of shared memory, no products of bytes, no loads of
/// them. Kernels
/// for them compute the same, and have no other products; that no load is narrower the specification of linear code holds.
#[test]
fn gpus_with_less_compute_the_same() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let t4 = Target { threads: 128, ..Target::named("t4") };
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
    let words =
        Target { threads: 64, ..Target::new(Machine { name: "words".into(), least_bytes: 4, ..invented.clone() }) };
    let invented = Target { threads: 128, ..Target::new(invented) };
    type Cases = fn() -> Vec<harness::Case>;
    let with_bytes: Cases = || [packed::integer(), attention::prompts()].into_iter().flatten().collect();
    let floats: Cases = || {
        let all = [reductions::cases(), packed::matvec(), packed::matmul(), experts::grouped(), attention::cases()];
        all.into_iter().flatten().collect()
    };
    for (target, cases) in [(t4, with_bytes), (invented, floats), (words, packed::matvec)] {
        let bytes = |p: &gristmill_uop::program::Program| p.source.contains("dot4");
        let (mut products, mut products_of_halves) = (0, 0);
        for case in cases() {
            let compiled = compile(&case.function, &target, Some(&Cuda as &dyn Dialect), &mut Cheapest);
            products += compiled.programs.iter().filter(|p| bytes(p)).count();
            for p in &compiled.programs {
                let halves = p.source.contains("mma_halves_8(");
                products_of_halves += usize::from(halves);
                let others = p.source.replace("mma_halves_8(", "").contains("mma");
                assert!(!others, "{} for {}:\n{}", case.name, target.name, p.source);
                assert!(p.scratch <= target.machine.shared_per_workgroup, "{} for {}", case.name, target.name);
            }
        }
        assert_eq!(products > 0, target.machine.dot4, "{}", target.name);
        assert_eq!(products_of_halves > 0, !target.machine.fragments.is_empty(), "{}", target.name);
        match Simulated::new(target.clone(), store()) {
            Ok(device) => {
                let device = Opened::new(Arc::new(device), Some(&Cuda));
                check(cases(), vec![Way { name: target.name, device, seed: None, same_as: None }]);
            }
            Err(missing) => simulated::skip(&missing),
        }
    }
}

/// Where several warps can share columns they do, but not of small tiles of tokens that data gives their weights, which the last case has.
#[test]
fn several_warps_share_columns() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let target = packed::with_groups(Target::named("h200"));
    let cases = packed::shared_columns();
    for (i, case) in cases.iter().enumerate() {
        let compiled = compile(&case.function, &target, Some(&Cuda as &dyn Dialect), &mut Cheapest);
        let shared = compiled.programs.iter().any(|p| p.source.contains(" = wgmma_"));
        assert_eq!(shared, i + 1 < cases.len(), "{}", case.name);
    }
}

/// A GPU as an interface to every vendor's tells of it, with workgroups of so few threads that an interpreter runs them in bearable time, and one unit for them, so that tiles are as
/// large as there are.
fn with_matrices(name: &str, threads: usize) -> Target {
    let mut target = Target::new(gristmill_uop::adapter::Adapter::named(name).expect("a row").machine());
    target.machine.units = 1;
    Target { threads, ..target }
}

/// Where subgroups multiply matrices they do, of 16 by 16 and of 8 by 8; subgroups of 32 threads that could be 64 are counted as these.
#[test]
fn subgroups_multiply_matrices() {
    use gristmill_backend::wgpu::dialect::Wgsl;
    use gristmill_compiler::{Cheapest, Dialect, compile};
    for (name, threads) in [("rx7900xtx", 128), ("m3-max", 64)] {
        let target = with_matrices(name, threads);
        for case in packed::matrices() {
            let compiled = compile(&case.function, &target, Some(&Wgsl as &dyn Dialect), &mut Cheapest);
            let multiplies = compiled.programs.iter().any(|p| p.source.contains("coopMultiplyAdd("));
            assert!(multiplies, "{} for {name}", case.name);
        }
        check(packed::matrices(), linear_of(vec![(name, target)]));
    }
}

/// The count that says which expert a tile is of is one sum for all that a stage of its weight holds, and is computed where that is filled, by neighbours.
#[test]
fn subgroups_multiply_matrices_of_experts() {
    use gristmill_backend::wgpu::dialect::Wgsl;
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let target = with_matrices("rx7900xtx", 128);
    let case = || vec![experts::grouped_of([64; 2], &gristmill_encodings::Q4_0, 32, 40).renamed("by 32")];
    let compiled = compile(&case()[0].function, &target, Some(&Wgsl as &dyn Dialect), &mut Cheapest);
    let has = |source: &str| ["coopMultiplyAdd(", "subgroupShuffleXor(", "pairs0["].iter().all(|s| source.contains(s));
    assert!(compiled.programs.iter().any(|p| has(&p.source)));
    check(case(), linear_of(vec![("rx7900xtx", target)]));
}

/// Of queries that are halves, a chunk of the cache is copied before the kernels before have ended, by a workgroup that has a multiprocessor to itself.
#[test]
fn a_cache_is_copied_before_the_wait() {
    use gristmill_compiler::{Cheapest, Dialect, compile};
    let target = Target { int8: false, ..Target::named("h200") };
    for case in attention::halves() {
        let compiled = compile(&case.function, &target, Some(&Cuda as &dyn Dialect), &mut Cheapest);
        let early = |source: &str| source.split("PREDECESSORS_ENDED").next().is_some_and(|s| s.contains("COPY("));
        let found: Vec<_> = compiled.programs.iter().filter(|p| early(&p.source)).collect();
        assert_eq!(found.len(), case.name.contains("f16") as usize, "{}", case.name);
        assert!(found.iter().all(|p| 2 * p.scratch > target.machine.shared_per_workgroup), "{}", case.name);
    }
}

/// Partial results that whoever reads them combines, and more of them, which a kernel of their own does.
#[test]
fn attention_at_a_depth() {
    check(attention::deep(), threads());
}

#[cfg(feature = "cuda-tests")]
#[test]
fn cuda_attention_at_a_depth() {
    check(attention::deep(), cuda());
}

/// Kernels as Metal gets them compute the same: some of every group, and some with products of bytes.
#[test]
fn kernels_for_metal() {
    let device: Arc<dyn Device> = match Simulated::for_language(metal::language(), metal::target(), store()) {
        Ok(device) => Arc::new(device),
        Err(missing) => return simulated::skip(&missing),
    };
    let way = |int8: bool| {
        let mut device = Opened::new(device.clone(), Some(&gristmill_backend::wgpu::dialect::Wgsl));
        device.target.int8 = int8;
        vec![Way { name: format!("metal, integers {int8}"), device, seed: None, same_as: None }]
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
    check(floats.into_iter().flat_map(|cases| cases.into_iter().step_by(4)).collect(), way(false));
    check(packed::matvec().into_iter().step_by(3).collect(), way(false));
    check(packed::integer().into_iter().step_by(5).chain(attention::integers()).collect(), way(true));
    check(packed::matrices(), way(true));
    // Without subgroups, several sums of which meet at once.
    let mut apart = way(false);
    apart.iter_mut().for_each(|way| way.device.target.machine.folds = 1);
    check(packed::matmul().into_iter().step_by(9).collect(), apart);
}

/// A weight that is longer than what an adapter binds is bound in pieces.
#[cfg(feature = "wgpu")]
#[test]
fn wgpu_binds_long_weights_in_pieces() {
    use gristmill_backend::wgpu::Limited;
    use gristmill_compiler::{Cheapest, compile};
    let mut device = adapter(Limited { largest_binding: Some(2 << 10), ..Limited::default() });
    device.target.int8 = false;
    let formats = ["f32", "f16", "q8_0", "q4_0", "q4_k"];
    let chosen = |case: &harness::Case| {
        let is_of =
            |format: &&str| case.name.contains(&format!("of {format},")) || case.name == format!("experts of {format}");
        formats.iter().any(is_of)
    };
    let cases: Vec<_> = packed::matvec().into_iter().chain(packed::gather()).filter(chosen).collect();
    let piece = device.target.machine.piece();
    let in_pieces = |case: &&harness::Case| {
        let compiled = compile(&case.function, &device.target, device.dialect, &mut Cheapest);
        compiled.programs.iter().any(|p| p.params.iter().any(|param| param.pieces(piece) > 1))
    };
    assert!(cases.len() == 2 * formats.len() && cases.iter().filter(in_pieces).count() > formats.len());
    check(cases, vec![Way { name: "in pieces".into(), device, seed: None, same_as: None }]);
}

/// Every optimisation can be switched off.
#[test]
fn results_are_correct_without_each_optimisation() {
    let best = Isa::parse("auto").expect("an instruction set");
    let device = on_cpu(best, 2);
    let mut ways = Vec::new();
    let mut off_all = device.clone();
    for flag in FLAGS.iter().filter(|flag| flag.acts_on(device.target.machine.kind)) {
        let mut device = device.clone();
        (flag.off)(&mut device.target);
        (flag.off)(&mut off_all.target);
        ways.push(Way { name: format!("without {}", flag.name), device, seed: None, same_as: None });
    }
    ways.push(Way { name: "without anything".into(), device: off_all, seed: None, same_as: None });
    check(some_of_all(), ways);
}

/// Networks of integers, and attention.
fn some_of_all() -> Vec<harness::Case> {
    let mut cases = packed::integer_network();
    cases.retain(|c| c.name.contains("q4_0") || c.name.contains("swiglu, q6_k"));
    cases.extend(attention::cases().into_iter().take(2));
    cases
}

/// And every one of a GPU, where kernels of CUDA C run on the processor.
#[test]
fn results_are_correct_without_each_optimisation_of_a_gpu() {
    let on = Target { threads: 64, ..Target::named("h200") };
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
        Way { name, device, seed: None, same_as: None }
    };
    let ways = targets.into_iter().map(way).collect();
    // Matrices of bytes, attention, and a cache of halves that is staged.
    let mut cases: Vec<harness::Case> = some_of_all().into_iter().filter(|c| !c.name.contains("q6_k")).collect();
    cases.extend(attention::halves().into_iter().find(|c| c.name.contains("f16")));
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
