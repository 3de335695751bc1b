//! Devices and schedules that the suite runs: a list of ways for each device.

use crate::emulated::{self, Emulated, Emulator};
use crate::harness::{Way, seeds};
use crate::simulated::{self, Simulated};
use gristmill_backend::Opened;
use gristmill_backend::cpu::{Cc, CpuDevice, ISAS, Isa, dialect};
use gristmill_backend::cuda::dialect::Cuda;
use gristmill_backend::interp::InterpDevice;
use gristmill_backend::interp::linear::LinearDevice;
use gristmill_runtime::Device;
use gristmill_runtime::store::Store;
use gristmill_uop::target::Target;
use std::sync::Arc;

/// The interpreter: the cheapest schedule and perturbed ones.
pub fn interp() -> Vec<Way> {
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
pub fn linear() -> Vec<Way> {
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

pub fn linear_of(targets: Vec<(&str, Target)>) -> Vec<Way> {
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
pub fn store() -> Store {
    let target = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = match target.is_dir() {
        true => target.join("kernels"),
        false => std::env::temp_dir().join("gristmill-conformance"),
    };
    Store::open(path, 1 << 30).expect("a store")
}

pub fn on_cpu(isa: Isa, threads: usize) -> Opened {
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
pub fn cpu() -> Vec<Way> {
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
pub fn neon() -> Vec<Way> {
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
pub fn threads() -> Vec<Way> {
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
pub fn cuda() -> Vec<Way> {
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
pub fn adapter(limited: gristmill_backend::wgpu::Limited) -> Opened {
    use gristmill_backend::wgpu::{WgpuDevice, dialect::Wgsl};
    let device = WgpuDevice::with((0, None), store(), &limited).expect("an adapter");
    Opened::new(Arc::new(device), Some(&Wgsl))
}

/// The first adapter: its cheapest schedule twice, with bit-identical results, and a perturbed one.
///
/// Also its cheapest schedule without subgroups, with a subgroup width halved, and without matrix
/// products, for features that it has.
#[cfg(feature = "wgpu")]
pub fn wgpu() -> Vec<Way> {
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

/// A GPU as described by a wgpu adapter, with few threads so that interpretation is fast.
///
/// It has one unit, so that output tiles have their largest size.
pub fn with_matrices(name: &str, threads: usize) -> Target {
    let mut target = Target::new(
        gristmill_uop::adapter::Adapter::named(name)
            .expect("a row")
            .machine(),
    );
    target.machine.units = 1;
    Target { threads, ..target }
}
