//! Tests on the first GPU.

use super::{ADD, CARRY, LONG, Place, REVERSE, SLOW, SUM, TURN, prelude};
use crate::cuda::CudaDevice;
use crate::null::NullDevice;
use gristmill_runtime::{Buffer, Device, Error, Kernel, Launch, Memory};
use gristmill_uop::Graph;
use gristmill_uop::measured::Measured;
use gristmill_uop::program::{Access, Extent, Param, Program};
use gristmill_uop::target::Target;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Workgroups of a test kernel.
enum Groups {
    Fixed(i64),
    /// Value of the variable `n`, at most 1000.
    N,
}

fn program(name: &str, source: &str, params: u32, threads: usize, groups: Groups) -> Program {
    let mut graph = Graph::new();
    let n = graph.var("n", 0, 1000);
    let groups = match groups {
        Groups::Fixed(groups) => graph.int(groups),
        Groups::N => n,
    };
    Program {
        source: source.replace("NAME", name),
        params: (0..params)
            .map(|slot| Param {
                slot,
                access: Access::ReadWrite,
                extent: Extent::Fixed(0),
            })
            .collect(),
        vars: vec![Arc::from("n")],
        threads,
        ..Program::new(name, Arc::new(graph), n, groups)
    }
}

fn device(place: &Place) -> CudaDevice {
    CudaDevice::with(0, place.store())
        .unwrap()
        .with_prelude(prelude())
}

fn kernel(device: &dyn Device, program: Program) -> Arc<dyn Kernel> {
    device.load(&[program], &|_, _| ()).unwrap().remove(0)
}

fn launch(kernel: &Arc<dyn Kernel>, buffers: &[&Buffer], level: usize) -> Launch {
    Launch {
        kernel: kernel.clone(),
        buffers: buffers.iter().map(|&b| b.clone()).collect(),
        level,
    }
}

fn floats(device: &dyn Device, values: impl IntoIterator<Item = f32>) -> Buffer {
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    let buffer = device.alloc(bytes.len(), Memory::Weights).unwrap();
    device.write(&buffer, 0, &bytes).unwrap();
    buffer
}

fn read_floats(device: &dyn Device, buffer: &Buffer) -> Vec<f32> {
    let mut bytes = vec![0; buffer.len()];
    device.read(buffer, 0, &mut bytes).unwrap();
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

fn read_integers(device: &dyn Device, buffer: &Buffer) -> Vec<i64> {
    let mut bytes = vec![0; buffer.len()];
    device.read(buffer, 0, &mut bytes).unwrap();
    bytes
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

#[test]
fn memory_starts_zeroed_and_keeps_writes() {
    let place = Place::new("memory");
    let device = device(&place);
    for memory in [Memory::State, Memory::Scratch] {
        let buffer = device.alloc(1 << 20, memory).unwrap();
        let mut bytes = vec![1; 1 << 20];
        device.read(&buffer, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&b| b == 0));
        let part = buffer.slice(100, 50).unwrap();
        device.write(&part, 10, &[7; 40]).unwrap();
        device.read(&buffer, 0, &mut bytes).unwrap();
        assert!(
            bytes
                .iter()
                .enumerate()
                .all(|(i, &b)| b == if (110..150).contains(&i) { 7 } else { 0 })
        );
        assert!(matches!(
            device.write(&part, 11, &[7; 40]).unwrap_err(),
            Error::Invalid { .. }
        ));
    }
    let error = device.alloc(1 << 50, Memory::Weights).err().unwrap();
    assert!(
        matches!(error, Error::OutOfMemory { free: Some(_), .. }),
        "{error}"
    );
    assert_eq!(device.alloc(0, Memory::Weights).unwrap().len(), 0);
}

#[test]
fn a_step_computes_for_every_number_of_workgroups() {
    let place = Place::new("step");
    let device = device(&place);
    let add = kernel(&device, program("e_add_1", ADD, 3, 8, Groups::N));
    let sum = kernel(&device, program("r_sum_1", SUM, 2, 1, Groups::Fixed(1)));
    let x = floats(&device, (0..8000).map(|i| i as f32 * 0.5));
    let y = floats(&device, (0..8000).map(|i| (i % 17) as f32 * 3.0));
    let out = floats(&device, [0.0; 8000]);
    let total = floats(&device, [0.0; 4]);
    // Out of order: capture sorts by level and keeps the order of times.
    let launches = vec![
        launch(&sum, &[&total.slice(4, 4).unwrap(), &out], 4),
        launch(&add, &[&out, &x, &y], 1),
    ];
    let mut replay = device.capture(launches).unwrap();
    for n in [0, 1, 5, 64, 65, 1000, 3] {
        let want = |i: usize| i as f32 * 0.5 + (i % 17) as f32;
        let sum: f32 = (0..n as usize * 8).map(want).sum();
        for timed in [false, true] {
            device.write(&out, 0, &[0; 32000]).unwrap();
            if timed {
                let times = replay.replay_timed(&[("n", n), ("unused", 3)]).unwrap();
                assert!(
                    times.len() == 2 && times.iter().all(|t| (1e-8..1e-2).contains(t)),
                    "{times:?}"
                );
                assert!(n < 1000 || times[0] > times[1], "{times:?}");
            } else {
                replay.replay(&[("n", n)]).unwrap();
            }
            let got = read_floats(&device, &out);
            let right =
                |(i, &v): (usize, &f32)| v == if i < n as usize * 8 { want(i) } else { 0.0 };
            assert!(got.iter().enumerate().all(right), "n {n}, timed {timed}");
            assert_eq!(
                read_floats(&device, &total),
                [0.0, sum, 0.0, 0.0],
                "n {n}, timed {timed}"
            );
        }
    }
    for vars in [&[][..], &[("n", -1)], &[("n", 1001)]] {
        assert!(matches!(
            replay.replay(vars).unwrap_err(),
            Error::Invalid { .. }
        ));
    }
    replay.replay(&[("n", 1000)]).unwrap();
    device.capture(vec![]).unwrap().replay(&[]).unwrap();
}

#[test]
fn steps_that_are_started_ahead_run_in_order_with_their_own_variables() {
    let place = Place::new("ahead");
    let device = device(&place);
    let carry = kernel(&device, program("e_carry_1", CARRY, 1, 1, Groups::Fixed(1)));
    let x = device.alloc(8, Memory::Scratch).unwrap();
    let mut steps: Vec<_> = (0..2)
        .map(|_| {
            device
                .capture((0..9).map(|level| launch(&carry, &[&x], level)).collect())
                .unwrap()
        })
        .collect();
    let mut want = 0i64;
    for n in 0..200 {
        steps[n as usize % 2].start(&[("n", n)]).unwrap();
        (0..9).for_each(|_| want = want.wrapping_mul(3).wrapping_add(n));
        if n >= 3 {
            steps[n as usize % 2].wait().unwrap();
        }
    }
    for step in &mut steps {
        (0..3).for_each(|_| step.wait().unwrap());
    }
    assert_eq!(read_integers(&device, &x), [want]);
}

#[test]
fn kernels_that_start_early_wait_for_those_before_them() {
    let place = Place::new("early");
    let device = device(&place);
    let turn = kernel(
        &device,
        program("e_turn_1", TURN, 2, 32, Groups::Fixed(256)),
    );
    let start: Vec<u8> = (0..256i64 * 32)
        .flat_map(|i| (i / 32 * 1000).to_le_bytes())
        .collect();
    let buffers: Vec<Buffer> = (0..2)
        .map(|_| device.alloc(start.len(), Memory::Scratch).unwrap())
        .collect();
    let launches = (0..500)
        .map(|i| launch(&turn, &[&buffers[(i + 1) % 2], &buffers[i % 2]], i))
        .collect();
    let mut replay = device.capture(launches).unwrap();
    for _ in 0..20 {
        device.write(&buffers[0], 0, &start).unwrap();
        replay.replay(&[("n", 0)]).unwrap();
        let got = read_integers(&device, &buffers[0]);
        assert!(
            got.iter()
                .enumerate()
                .all(|(i, &v)| v == (i as i64 / 32 + 500) % 256 * 1000 + 500)
        );
    }
}

#[test]
fn a_workgroup_may_share_more_than_the_usual_48_kb() {
    let place = Place::new("shared");
    let device = device(&place);
    let mut reverse = program("e_reverse_1", REVERSE, 1, 256, Groups::Fixed(1));
    reverse.scratch = 96 << 10;
    let reverse = kernel(&device, reverse);
    let x = floats(&device, (0..24576).map(|i| i as f32));
    device
        .capture(vec![launch(&reverse, &[&x], 0)])
        .unwrap()
        .replay(&[("n", 0)])
        .unwrap();
    assert!(
        read_floats(&device, &x)
            .iter()
            .enumerate()
            .all(|(i, &v)| v == (24575 - i) as f32)
    );
    let mut huge = program("e_reverse_2", REVERSE, 1, 256, Groups::Fixed(1));
    huge.scratch = 1 << 20;
    assert!(
        device
            .load(&[huge], &|_, _| ())
            .err()
            .unwrap()
            .to_string()
            .contains("1048576 shared bytes")
    );
    let wide = program("e_reverse_3", REVERSE, 1, 4096, Groups::Fixed(1));
    assert!(
        device
            .load(&[wide], &|_, _| ())
            .err()
            .unwrap()
            .to_string()
            .contains("4096 threads")
    );
}

#[test]
fn times_are_those_of_their_launches() {
    let place = Place::new("times");
    let device = device(&place);
    let slow = kernel(&device, program("e_slow_1", SLOW, 1, 1, Groups::Fixed(1)));
    let carry = kernel(&device, program("e_carry_2", CARRY, 1, 1, Groups::Fixed(1)));
    let x = device.alloc(8, Memory::Scratch).unwrap();
    let launches = (0..7)
        .map(|i| launch(if i == 3 { &slow } else { &carry }, &[&x], 9 - i))
        .collect();
    let mut replay = device.capture(launches).unwrap();
    replay.replay_timed(&[("n", 1)]).unwrap();
    let times = replay.replay_timed(&[("n", 1)]).unwrap();
    assert!(
        times
            .iter()
            .enumerate()
            .all(|(i, &t)| (t > 2e-4) == (i == 3) && t > 0.0),
        "{times:?}"
    );
}

#[test]
fn waits_end_with_the_step_whether_or_not_they_have_a_limit() {
    let place = Place::new("waits");
    for limit in [None, Some(Duration::from_secs(60))] {
        let device = device(&place).with_wait_limit(limit);
        let slow = kernel(&device, program("e_slow_2", SLOW, 1, 1, Groups::Fixed(1)));
        let x = device.alloc(8, Memory::Scratch).unwrap();
        let mut replay = device.capture(vec![launch(&slow, &[&x], 0)]).unwrap();
        for _ in 0..3 {
            replay.replay(&[("n", 1)]).unwrap();
            assert_eq!(read_integers(&device, &x), [1]);
            device.write(&x, 0, &[0; 8]).unwrap();
        }
    }
}

/// The lost device leaks its memory until the process ends, so the test runs in a child process;
/// another user of the GPU waits for the kernel and is not affected.
#[test]
fn a_step_that_takes_longer_than_waits_may_makes_the_device_lost() {
    const CHILD: &str = "GRISTMILL_TEST_LONG_STEP";
    if std::env::var_os(CHILD).is_none() {
        let name =
            "cuda::tests::gpu::a_step_that_takes_longer_than_waits_may_makes_the_device_lost";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        return assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
    }
    let place = Place::new("long");
    let impatient = device(&place).with_wait_limit(Some(Duration::from_millis(100)));
    let long = kernel(
        &impatient,
        program("e_long_1", LONG, 1, 1, Groups::Fixed(1)),
    );
    let x = impatient.alloc(8, Memory::Scratch).unwrap();
    let mut replay = impatient.capture(vec![launch(&long, &[&x], 0)]).unwrap();
    let begin = Instant::now();
    let error = replay.replay(&[("n", 1)]).unwrap_err();
    assert!(
        error.is_lost() && error.to_string().contains("100ms"),
        "{error}"
    );
    assert!(impatient.alloc(8, Memory::Scratch).err().unwrap().is_lost());
    drop((replay, x, long, impatient));
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
    let patient = device(&place);
    let carry = kernel(
        &patient,
        program("e_carry_5", CARRY, 1, 1, Groups::Fixed(1)),
    );
    let x = patient.alloc(8, Memory::Scratch).unwrap();
    patient
        .capture(vec![launch(&carry, &[&x], 0)])
        .unwrap()
        .replay(&[("n", 7)])
        .unwrap();
    assert_eq!(read_integers(&patient, &x), [7]);
}

#[test]
fn one_thread_may_hold_more_pieces_than_there_is_pinned_memory_for() {
    let place = Place::new("pieces");
    let device = device(&place).with_staging_kept_for(Duration::ZERO);
    let carry = kernel(&device, program("e_carry_6", CARRY, 1, 1, Groups::Fixed(1)));
    let x = device.alloc(8, Memory::Scratch).unwrap();
    let mut replay = device.capture(vec![launch(&carry, &[&x], 0)]).unwrap();
    let to = device.alloc(20 << 20, Memory::Weights).unwrap();
    for round in 0..3u8 {
        let mut pieces: Vec<_> = (0..20)
            .map(|i| device.stage(&to, i << 20, 1 << 20).unwrap())
            .collect();
        (0..)
            .zip(&mut pieces)
            .for_each(|(i, piece)| piece.bytes().fill(i + round));
        pieces.into_iter().for_each(|piece| piece.send().unwrap());
        // Frees pinned memory after its copies.
        replay.replay(&[("n", 1)]).unwrap();
        let mut bytes = vec![0; 20 << 20];
        device.read(&to, 0, &mut bytes).unwrap();
        assert!(
            (0..)
                .zip(bytes.chunks(1 << 20))
                .all(|(i, chunk)| chunk.iter().all(|&b| b == i + round))
        );
    }
}

#[test]
fn buffers_of_other_devices_are_refused() {
    let place = Place::new("refused");
    let device = device(&place);
    let carry = kernel(&device, program("e_carry_3", CARRY, 1, 1, Groups::Fixed(1)));
    let null = NullDevice::new("null", Target::named("h200"));
    let foreign = null.alloc(8, Memory::Scratch).unwrap();
    assert!(
        device
            .write(&foreign, 0, &[0; 8])
            .unwrap_err()
            .to_string()
            .contains("another device")
    );
    assert!(
        device
            .capture(vec![launch(&carry, &[&foreign], 0)])
            .is_err()
    );
    assert!(device.capture(vec![launch(&carry, &[], 0)]).is_err());
    let other = kernel(&null, program("e_carry_4", CARRY, 1, 1, Groups::Fixed(1)));
    let x = device.alloc(8, Memory::Scratch).unwrap();
    assert!(
        device
            .capture(vec![launch(&other, &[&x], 0)])
            .err()
            .unwrap()
            .to_string()
            .contains("another device")
    );
    let bad = program(
        "e_bad_1",
        "KERNEL NAME(f32 *x) { none(); }",
        1,
        1,
        Groups::Fixed(1),
    );
    let error = device.load(&[bad], &|_, _| ()).err().unwrap();
    assert!(
        matches!(&error, Error::Compile { kernel, message } if kernel == "e_bad_1" && message.contains("e_bad_1.cu("))
    );
    assert!(
        CudaDevice::new(99)
            .err()
            .unwrap()
            .hint()
            .unwrap()
            .contains("cuda:0")
    );
}

/// Bounds that no GPU exceeds: they expose a kernel that reads nothing or a barrier
/// that was optimised away.
#[test]
fn costs_are_measured() {
    let place = Place::new("costs");
    let device = device(&place);
    let begin = std::time::Instant::now();
    let costs = device.measure().unwrap().unwrap();
    println!("{} in {:?}", costs.text(), begin.elapsed());
    let within = |cost: Option<f64>, least: f64, most: f64| {
        cost.is_some_and(|cost| (least..most).contains(&cost))
    };
    assert!(within(costs.bandwidth, 1e11, 2e13), "{costs:?}");
    assert!(within(costs.launch, 0.2e-6, 20e-6), "{costs:?}");
    assert!(within(costs.barrier, 3e-9, 500e-9), "{costs:?}");
    assert!(within(costs.latency, 100e-9, 3e-6), "{costs:?}");
    assert!(
        device.describe().join("\n").contains(&costs.text()),
        "{:?}",
        device.describe()
    );
    assert!(device.warnings().is_empty());
}
