//! Driver calls of the normal case: counts, contexts, pinned memory, the store, the compiler.

use crate::fake::{self, Fake, OUT_OF_MEMORY, SYSTEM};
use crate::lost::ready;
use crate::step::{Place, launches, program, read, stage};
use gristmill_backend::cuda::CudaDevice;
use gristmill_runtime::staging::StagedWrite;
use gristmill_runtime::{Buffer, Device, Error, Memory};
use std::process::Command;
use std::time::Duration;

fn assert_clean(fake: &Fake) {
    assert_eq!((fake.report().as_str(), fake.live().as_str()), ("", ""));
}

#[test]
fn a_token_takes_nine_calls() {
    let fake = Fake::new();
    let mut ready = ready(&Place::new(), 0);
    for token in 0..3 {
        fake.names();
        ready.step.start(&[("n", 1)]).unwrap();
        ready.step.wait().unwrap();
        read(&ready.device, &ready.buffers[2]).unwrap();
        let calls = fake.names();
        let start = [
            "cuCtxGetCurrent",
            "cuMemcpyHtoDAsync_v2",
            "cuGraphLaunch",
            "cuEventRecord",
        ];
        let wait = ["cuCtxGetCurrent", "cuEventQuery"];
        let read = [
            "cuCtxGetCurrent",
            "cuMemcpyDtoHAsync_v2",
            "cuStreamSynchronize",
        ];
        assert!(
            token == 0 || calls == [&start[..], &wait, &read].concat(),
            "token {token}: {calls:?}"
        );
    }
    // Without a timeout the driver waits itself.
    ready.device = ready.device.with_wait_limit(None);
    ready.step.start(&[("n", 1)]).unwrap();
    fake.names();
    ready.step.wait().unwrap();
    assert_eq!(fake.names(), ["cuCtxGetCurrent", "cuEventSynchronize"]);
}

#[test]
fn a_context_that_was_current_is_current_again() {
    let fake = Fake::new();
    let place = Place::new();
    let other = fake.enter(1);
    let mut ready = ready(&place, 0);
    assert_eq!(fake.current(), other);
    for n in 0..3 {
        stage(&ready.device, &ready.buffers[0], n).unwrap();
        ready.step.replay(&[("n", n)]).unwrap();
        ready.step.replay_timed(&[("n", n)]).unwrap();
        assert_eq!(read(&ready.device, &ready.buffers[2]).unwrap(), 13 * n);
        assert_eq!(fake.current(), other);
    }
    drop(ready);
    assert_eq!(
        (fake.current(), fake.report().as_str(), fake.live().as_str()),
        (other, "", "context ")
    );
}

#[test]
fn buffers_of_another_gpu_are_refused() {
    let fake = Fake::new();
    let place = Place::new();
    let (one, two) = (ready(&place, 0), ready(&place, 1));
    let refused = |kernels, buffers| {
        one.device
            .capture(launches(kernels, buffers))
            .err()
            .unwrap()
            .to_string()
    };
    assert!(refused(&two.kernels, &one.buffers).contains("another device"));
    assert!(refused(&one.kernels, &two.buffers).contains("another device"));
    one.device
        .capture(launches(&one.kernels, &one.buffers))
        .unwrap();
    drop((one, two));
    assert_clean(&fake);
}

/// Allocates a buffer of `count` words.
fn words(device: &CudaDevice, count: usize) -> Buffer {
    device.alloc(8 * count, Memory::State).unwrap()
}

/// Stages all words of a buffer as pieces held by this thread, then sends them.
fn stage_all(device: &CudaDevice, buffer: &Buffer) {
    let count = buffer.len() / 8;
    let piece = |i| device.stage(buffer, 8 * i, 8).unwrap();
    let mut pieces: Vec<Box<dyn StagedWrite + '_>> = (0..count).map(piece).collect();
    for (i, piece) in pieces.iter_mut().enumerate() {
        piece.bytes().copy_from_slice(&(i as i64 + 1).to_le_bytes());
    }
    pieces.into_iter().for_each(|piece| piece.send().unwrap());
    let mut bytes = vec![0; 8 * count];
    device.read(buffer, 0, &mut bytes).unwrap();
    let words = bytes
        .chunks_exact(8)
        .map(|word| i64::from_le_bytes(word.try_into().unwrap()));
    assert!(words.eq(1..=count as i64), "of {count}");
}

#[test]
fn pieces_do_without_pinned_memory_where_there_is_too_little() {
    for allowed in [0, 1, 3, 100] {
        let fake = Fake::new();
        let ready = ready(&Place::new(), 0);
        let device = &ready.device;
        fake.refuse(c"cuMemHostAlloc", allowed, OUT_OF_MEMORY);
        for _ in 0..2 {
            // More than the pool's maximum, and only this thread could return one.
            stage_all(device, &words(device, 15));
        }
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| stage_all(device, &words(device, 7)))));
        });
        drop(ready);
        assert_clean(&fake);
    }
}

/// If the end of a copy is unknown, it is waited for before its piece is reused.
#[test]
fn a_piece_is_not_filled_again_while_it_is_read() {
    let fake = Fake::new();
    let ready = ready(&Place::new(), 0);
    // Uses all staging buffers of the pool.
    let all = words(&ready.device, 12);
    stage_all(&ready.device, &all);
    fake.names();
    stage(&ready.device, &ready.buffers[0], 1).unwrap();
    let mark = fake
        .names()
        .iter()
        .position(|name| name == "cuEventRecord")
        .unwrap()
        + 1;
    fake.fail(mark, SYSTEM, false);
    let error = stage(&ready.device, &ready.buffers[0], 2).unwrap_err();
    assert!(error.to_string().contains("cuEventRecord"), "{error}");
    stage_all(&ready.device, &all);
    assert_eq!(read(&ready.device, &ready.buffers[0]).unwrap(), 2);
    drop((all, ready));
    assert_clean(&fake);
}

#[test]
fn a_device_that_is_closed_lets_copies_end() {
    let fake = Fake::new();
    let ready = ready(&Place::new(), 0);
    // Freeing any of its memory would wait for copies.
    let kept = ready.buffers.clone();
    stage(&ready.device, &kept[0], 1).unwrap();
    drop(ready);
    drop(kept);
    assert_clean(&fake);
}

#[test]
fn pinned_memory_is_freed_when_nothing_is_staged_any_more() {
    let fake = Fake::new();
    let mut ready = ready(&Place::new(), 0);
    let pieces = |fake: &Fake| fake.live().matches("pinned memory").count();
    stage_all(&ready.device, &words(&ready.device, 12));
    ready.step.replay(&[("n", 1)]).unwrap();
    assert_eq!(pieces(&fake), 12);
    ready.device = ready.device.with_staging_kept_for(Duration::ZERO);
    ready.step.replay(&[("n", 1)]).unwrap();
    assert_eq!(pieces(&fake), 1);
    stage_all(&ready.device, &words(&ready.device, 12));
    drop(ready);
    assert_clean(&fake);
}

#[test]
fn a_kept_module_that_does_not_load_is_compiled_again() {
    let fake = Fake::new();
    let place = Place::new();
    drop(ready(&place, 0));
    fake.names();
    drop(ready(&place, 0));
    let loads: Vec<usize> = (1..)
        .zip(fake.names())
        .filter(|(_, name)| name == "cuModuleLoadData")
        .map(|l| l.0)
        .collect();
    assert_eq!(loads.len(), 2);
    for n in loads {
        let compiled = fake.compilations();
        fake.fail(n, 200, false);
        ready(&place, 0).step.replay(&[("n", 1)]).unwrap();
        assert_eq!(
            (fake.failed().as_str(), fake.compilations() - compiled),
            ("cuModuleLoadData", 1)
        );
    }
    fake.refuse(c"cuModuleLoadData", 0, 200);
    let error = CudaDevice::with(0, place.store()).err().unwrap();
    assert!(
        error.to_string().contains("cuModuleLoadData")
            && error.hint().unwrap().contains("update the driver")
    );
    assert_clean(&fake);
}

#[test]
fn a_store_that_takes_nothing_makes_nothing_fail() {
    let fake = Fake::new();
    let place = Place::new();
    let device = CudaDevice::with(0, place.store()).unwrap();
    place.remove();
    let kernels = device.load(&[program("e_1", 0)], &|_, _| ()).unwrap();
    assert_eq!(kernels.len(), 1);
    let warnings: Vec<String> = device.warnings().iter().map(Error::to_string).collect();
    assert!(
        matches!(&warnings[..], [one] if one.contains("not kept")),
        "{warnings:?}"
    );
    drop((kernels, device));
    assert_clean(&fake);
}

#[test]
fn a_compiler_that_does_not_say_what_it_knows_is_not_asked() {
    let fake = Fake::new();
    fake.hide_architectures();
    let error = CudaDevice::with(0, Place::new().store()).err().unwrap();
    assert!(
        matches!(&error, Error::Lacking { .. })
            && error.to_string().contains("nvrtcGetNumSupportedArchs"),
        "{error}"
    );
    assert_clean(&fake);
}

/// `cudarc` finds a library once per process, so this test runs in a child process.
#[test]
fn an_old_compiler_is_an_error() {
    const CHILD: &str = "GRISTMILL_TEST_OLD_NVRTC";
    if std::env::var_os(CHILD).is_none() {
        let this = std::env::current_exe().unwrap();
        let mut child = Command::new(this);
        child
            .args(["--exact", "usual::an_old_compiler_is_an_error"])
            .env(CHILD, "1");
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        return assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
    }
    let _old = fake::nvrtc(&["-DOLD"]);
    let error = gristmill_backend::cuda::Nvrtc::find()
        .err()
        .expect("it is too old");
    assert!(
        error.to_string().contains("too old") && error.hint().unwrap().contains("pip install"),
        "{error}"
    );
}
