//! The device `wgpu` on the first adapter, possibly a software rasteriser: copies, grids,
//! variables, missing features, and an adapter that does not answer.
#![cfg(feature = "wgpu")]

use gristmill_backend::wgpu::{Limited, WgpuDevice};
use gristmill_runtime::store::Store;
use gristmill_runtime::{Buffer, Device, Error, Launch, Memory};
use gristmill_uop::Graph;
use gristmill_uop::program::{Access, Extent, Param, Program};
use std::sync::Arc;
use std::time::Duration;

/// Adds `n` to the element of each workgroup.
const TEXT: &str = "
@group(0) @binding(0) var<storage, read_write> p0: array<u32>;
@group(0) @binding(1) var<storage, read_write> p1: array<u32>;
struct Variables { v0: i32 }
@group(0) @binding(2) var<uniform> variables: Variables;
@compute @workgroup_size(1)
fn NAME(@builtin(workgroup_id) group: vec3<u32>) {
  let w = group.x + 32768u * group.y;
  if (w < u32(variables.v0)) { p1[w] = p0[w] + u32(variables.v0); }
}
";

fn device(limited: Limited) -> WgpuDevice {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("wgpu");
    WgpuDevice::with((0, None), Store::open(folder, 1 << 26).unwrap(), &limited)
        .expect("an adapter")
}

fn program(source: &str) -> Program {
    let mut graph = Graph::new();
    let n = graph.var("n", 0, 1 << 20);
    let param = |slot, access| Param {
        slot,
        access,
        extent: Extent::Per {
            variable: "n".into(),
            bytes: 4,
        },
    };
    Program {
        source: source.replace("NAME", "added"),
        params: vec![param(0, Access::Read), param(1, Access::Write)],
        vars: vec![Arc::from("n")],
        ..Program::new("added", Arc::new(graph), n, n)
    }
}

fn load(device: &WgpuDevice, source: &str) -> Result<Arc<dyn gristmill_runtime::Kernel>, Error> {
    Ok(device.load(&[program(source)], &|_, _| ())?.remove(0))
}

fn words(device: &WgpuDevice, buffer: &Buffer) -> Vec<u32> {
    let mut bytes = vec![0; buffer.len()];
    device.read(buffer, 0, &mut bytes).unwrap();
    bytes
        .chunks(4)
        .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

/// Asserts that an error contains the text and has a hint.
fn assert_said(error: &Error, what: &str) {
    assert!(
        error.to_string().contains(what) && error.hint().is_some_and(|hint| !hint.is_empty()),
        "{error}"
    );
}

#[test]
fn bytes_are_written_and_read_wherever_they_lie() {
    let device = device(Limited::default());
    let buffer = device.alloc(103, Memory::Scratch).unwrap();
    let mut expected = vec![0; 103];
    for (offset, len) in [
        (0, 103),
        (1, 1),
        (5, 2),
        (6, 9),
        (99, 4),
        (102, 1),
        (40, 0),
        (3, 1),
    ] {
        let data: Vec<u8> = (0..len).map(|i| (offset * 7 + i * 3 + 1) as u8).collect();
        device.write(&buffer, offset, &data).unwrap();
        expected[offset..offset + len].copy_from_slice(&data);
        let mut found = vec![0; 103];
        device.read(&buffer, 0, &mut found).unwrap();
        assert_eq!(found, expected, "{len} at {offset}");
        let mut part = vec![0; len];
        device
            .read(&buffer.slice(offset, len).unwrap(), 0, &mut part)
            .unwrap();
        assert_eq!(part, data);
    }
    assert!(device.write(&buffer, 100, &[0; 4]).is_err());
}

#[test]
fn a_step_has_the_workgroups_and_the_variables_of_its_start() {
    let device = device(Limited::default());
    let most = (1 << 17) + 1;
    let [from, to] = [0, 1].map(|_| device.alloc(4 * most, Memory::State).unwrap());
    let first: Vec<u8> = (0..most as u32)
        .flat_map(|i| (3 * i).to_le_bytes())
        .collect();
    device.write(&from, 0, &first).unwrap();
    let kernel = load(&device, TEXT).unwrap();
    let mut step = device
        .capture(vec![Launch {
            kernel,
            buffers: vec![from, to.clone()],
            level: 0,
        }])
        .unwrap();
    for n in [1, 1000, 65_535, 65_536, most, 0, 3] {
        device.write(&to, 0, &vec![0xff; 4 * most]).unwrap();
        step.replay(&[("n", n as i64)]).unwrap();
        let found = words(&device, &to);
        assert!((0..n).all(|i| found[i] == 3 * i as u32 + n as u32), "{n}");
        assert!(found[n..].iter().all(|&word| word == u32::MAX), "{n}");
    }
    let error = step.replay(&[("n", most as i64 + 1)]).unwrap_err();
    assert!(error.to_string().contains("is not in"), "{error}");
}

/// The result of a step is readable once it has been waited for, while later steps run, until
/// another write to the buffer.
#[test]
fn readback_overlaps_the_next_step() {
    let device = device(Limited::default());
    let (from, to) = (
        device.alloc(40, Memory::State).unwrap(),
        device.alloc(40, Memory::Readback).unwrap(),
    );
    let kernel = load(&device, TEXT).unwrap();
    let mut step = device
        .capture(vec![Launch {
            kernel,
            buffers: vec![from, to.clone()],
            level: 0,
        }])
        .unwrap();
    let settled = || {
        let mut bytes = [0; 40];
        device.read_settled(&to, 0, &mut bytes).unwrap();
        bytes
            .chunks(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect::<Vec<u32>>()
    };
    let told =
        |first: u32, count: usize, rest: u32| [vec![first; count], vec![rest; 10 - count]].concat();
    for n in [10, 7, 5, 3] {
        step.start(&[("n", n)]).unwrap();
    }
    step.wait().unwrap();
    assert_eq!(settled(), told(10, 10, 0));
    step.wait().unwrap();
    assert_eq!(settled(), told(7, 7, 10));
    let mut part = [0; 8];
    device
        .read_settled(&to.slice(24, 8).unwrap(), 0, &mut part)
        .unwrap();
    assert_eq!(part, [7, 0, 0, 0, 10, 0, 0, 0]);
    assert!(
        device.write(&to, 0, &[0; 4]).is_err(),
        "two steps are in flight"
    );
    step.wait().unwrap();
    step.wait().unwrap();
    assert_eq!(words(&device, &to)[..6], [3, 3, 3, 5, 5, 7]);
    device.write(&to, 4, &9u32.to_le_bytes()).unwrap();
    assert_eq!(words(&device, &to)[..4], [3, 9, 3, 5]);
    // Timed steps make no copies.
    step.replay_timed(&[("n", 2)]).unwrap();
    assert_eq!(words(&device, &to)[..4], [2, 2, 3, 5]);
    step.replay(&[("n", 1)]).unwrap();
    assert_eq!(words(&device, &to)[..4], [1, 2, 3, 5]);
}

#[test]
fn launches_are_timed_by_the_adapters_clock_or_by_the_hosts() {
    for no_timestamps in [false, true] {
        let device = device(Limited {
            no_timestamps,
            ..Limited::default()
        });
        let kernel = load(&device, TEXT).unwrap();
        let [from, to] = [0, 1].map(|_| device.alloc(4000, Memory::State).unwrap());
        let launch = |level| Launch {
            kernel: kernel.clone(),
            buffers: vec![from.clone(), to.clone()],
            level,
        };
        let times = device
            .capture((0..3).map(launch).collect())
            .unwrap()
            .replay_timed(&[("n", 1000)])
            .unwrap();
        assert!(
            times.len() == 3 && times.iter().all(|&seconds| seconds > 0.0 && seconds < 60.0),
            "{times:?}"
        );
        assert_eq!(words(&device, &to), [1000; 1000]);
    }
}

#[test]
fn unsupported_adapter_limits_are_reported() {
    let small = device(Limited {
        largest_binding: Some(1 << 20),
        largest_buffer: Some(4 << 20),
        ..Limited::default()
    });
    assert_said(
        &small.alloc(5 << 20, Memory::Weights).err().unwrap(),
        "takes buffers of 4194304 bytes",
    );
    let kernel = load(&small, TEXT).unwrap();
    let [from, to] = [1, 2].map(|megabytes| small.alloc(megabytes << 20, Memory::Scratch).unwrap());
    let launch = Launch {
        kernel,
        buffers: vec![from, to],
        level: 0,
    };
    assert_said(
        &small.capture(vec![launch]).err().unwrap(),
        "binds 1048576 bytes",
    );
    let few = device(Limited {
        buffers: Some(1),
        ..Limited::default()
    });
    assert_said(
        &load(&few, TEXT).err().unwrap(),
        "binds 1 buffers, and added has 2",
    );
    let huge = small.alloc(1 << 46, Memory::Scratch).err().unwrap();
    assert_said(&huge, "bytes");
    let narrow = device(Limited {
        no_long: true,
        ..Limited::default()
    });
    let long = TEXT.replace("+ u32(variables.v0)", "+ u32(i64(variables.v0))");
    assert_said(
        &load(&narrow, &long).err().unwrap(),
        "has no integers of 64 bits",
    );
    let wide = Program {
        threads: 1 << 20,
        ..program(TEXT)
    };
    assert_said(
        &narrow.load(&[wide], &|_, _| ()).err().unwrap(),
        "threads together",
    );
    let greedy = Program {
        scratch: 1 << 30,
        ..program(TEXT)
    };
    assert_said(
        &narrow.load(&[greedy], &|_, _| ()).err().unwrap(),
        "shared bytes",
    );
}

/// Adds the first words and the lengths of both pieces of a buffer.
const PIECES: &str = "
@group(0) @binding(0) var<storage, read_write> p0: array<u32>;
@group(0) @binding(1) var<storage, read_write> p1: array<u32>;
@group(0) @binding(2) var<storage, read_write> p0_1: array<u32>;
@compute @workgroup_size(1)
fn added() { p1[0] = p0[0] + p0_1[0] + arrayLength(&p0) + arrayLength(&p0_1); }
";

#[test]
fn a_buffer_that_is_too_long_for_a_binding_is_several() {
    let device = device(Limited {
        largest_binding: Some(1 << 10),
        ..Limited::default()
    });
    let param = |slot, access, bytes| Param {
        slot,
        access,
        extent: Extent::Fixed(bytes),
    };
    let params = vec![param(0, Access::Read, 1600), param(1, Access::Write, 4)];
    let mut graph = Graph::new();
    let one = graph.int(1);
    let program = Program {
        source: PIECES.into(),
        params,
        ..Program::new("added", Arc::new(graph), one, one)
    };
    let kernel = device.load(&[program], &|_, _| ()).unwrap().remove(0);
    let [from, to] = [1600, 4].map(|bytes| device.alloc(bytes, Memory::Weights).unwrap());
    device.write(&from, 0, &7u32.to_le_bytes()).unwrap();
    device
        .write(&from, 1 << 10, &50_000u32.to_le_bytes())
        .unwrap();
    device
        .capture(vec![Launch {
            kernel,
            buffers: vec![from, to.clone()],
            level: 0,
        }])
        .unwrap()
        .replay(&[])
        .unwrap();
    assert_eq!(words(&device, &to), [50_007 + 400]);
}

/// Compiled kernels are kept, and damaged entries are harmless.
#[test]
fn compiled_kernels_are_kept() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("wgpu-kept");
    let _ = std::fs::remove_dir_all(&folder); // of the previous run
    let files = || -> Vec<std::path::PathBuf> {
        std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    };
    for round in 0..3 {
        let store = Store::open(&folder, 1 << 26).unwrap();
        let device = WgpuDevice::with((0, None), store, &Limited::default()).unwrap();
        load(&device, TEXT).unwrap();
        let keeps = device
            .describe()
            .iter()
            .any(|line| line.contains("that are kept"));
        assert_eq!(!files().is_empty(), keeps, "{round}");
        for file in files().iter().filter(|_| round == 1) {
            let mut bytes = std::fs::read(file).unwrap();
            bytes.iter_mut().for_each(|byte| *byte ^= 0x5a);
            std::fs::write(file, bytes).unwrap();
        }
    }
}

/// Marks the child process of a test.
const CHILD: &str = "GRISTMILL_TEST_CHILD";

/// Runs in a child process with a memory limit, which an adapter in host memory exceeds.
#[test]
#[cfg(target_os = "linux")]
fn memory_that_is_not_there_is_an_error() {
    const NAME: &str = "memory_that_is_not_there_is_an_error";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let status = child
            .args(["--exact", NAME])
            .env(CHILD, NAME)
            .status()
            .unwrap();
        return assert!(status.success(), "{status}");
    }
    let device = device(Limited::default());
    let used = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = used.split(' ').next().unwrap().parse().unwrap();
    let most = libc::rlimit {
        rlim_cur: pages * 4096 + (3 << 28),
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: passes a valid limit.
    assert_eq!(
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const most) },
        0
    );
    let mut kept = Vec::new();
    let error = loop {
        match device.alloc(1 << 30, Memory::Weights) {
            Ok(buffer) => kept.push(buffer),
            Err(error) => break error,
        }
        assert!(kept.len() < 1024, "no end");
    };
    assert!(
        matches!(
            error,
            Error::OutOfMemory {
                wanted: 1_073_741_824,
                ..
            }
        ),
        "{error}"
    );
    assert_said(&error, "weights");
    // The device still works.
    device.alloc(1 << 10, Memory::Scratch).unwrap();
}

#[test]
fn a_kernel_that_is_none_is_an_error_with_its_name() {
    let device = device(Limited::default());
    for (text, what) in [
        ("fn NAME( {", "added"),
        (&TEXT.replace("p0[w]", "p7[w]"), "p7"),
        (&TEXT.replace("NAME", "other"), "added"),
    ] {
        let error = load(&device, text).err().unwrap();
        assert!(matches!(error, Error::Compile { .. }), "{error}");
        assert_said(&error, what);
    }
    // The device still works.
    load(&device, TEXT).unwrap();
}

#[test]
fn a_step_that_does_not_end_makes_the_device_lost() {
    let device = device(Limited::default());
    let slow = TEXT.replace(
        "p1[w] = p0[w]",
        "var x = p0[w]; for (var i = 0u; i < 200000000u; i += 1u) { x = x * 1664525u + 1013904223u + p0[x & 1u]; } p1[w] = x",
    );
    let kernel = load(&device, &slow).unwrap();
    // Lavapipe ends a loop after 65,535 iterations, 10 ms of a core: these take a third of
    // a second on two.
    const GROUPS: i64 = 64;
    let [from, to] = [0, 1].map(|_| device.alloc(4 * GROUPS as usize, Memory::State).unwrap());
    let launch = Launch {
        kernel,
        buffers: vec![from, to.clone()],
        level: 0,
    };
    let mut step = device.capture(vec![launch]).unwrap();
    let device = device.with_wait_limit(Duration::from_millis(1));
    // On a busy machine the wait may first check after the step has ended.
    let error = (0..8)
        .find_map(|_| step.replay(&[("n", GROUPS)]).err())
        .expect("a step that is waited for in vain");
    assert!(error.is_lost(), "{error}");
    assert_said(&error, "has not ended after");
    assert!(step.replay(&[("n", GROUPS)]).unwrap_err().is_lost());
    assert!(device.alloc(64, Memory::Scratch).err().unwrap().is_lost());
    assert!(device.read(&to, 0, &mut [0; 4]).unwrap_err().is_lost());
}
