//! Loss of a GPU by a fatal error or an endless kernel.

use crate::fake::{CLIENT_TERMINATED, Fake, LAUNCH_FAILED, NOT_READY, SYSTEM};
use crate::step::{Place, launches, program, read, stage};
use gristmill_backend::cuda::CudaDevice;
use gristmill_runtime::{Buffer, Device, Error, Kernel, Memory, Replay};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device with a captured step.
pub struct Ready {
    // In the order of dropping.
    pub step: Box<dyn Replay>,
    pub buffers: [Buffer; 3],
    pub kernels: Vec<Arc<dyn Kernel>>,
    pub device: CudaDevice,
}

pub fn ready(place: &Place, number: usize) -> Ready {
    let device = CudaDevice::with(number, place.store()).unwrap();
    let kernels = device
        .load(&[program("e_1", 0), program("e_2", 0)], &|_, _| ())
        .unwrap();
    let buffers = [0; 3].map(|_| device.alloc(64, Memory::State).unwrap());
    let step = device.capture(launches(&kernels, &buffers)).unwrap();
    Ready {
        step,
        buffers,
        kernels,
        device,
    }
}

/// Calls all operations of a lost device. Returns their errors.
fn everything(ready: &mut Ready) -> Vec<Error> {
    let Ready {
        step,
        buffers,
        kernels,
        device,
    } = ready;
    let x = &buffers[0];
    let errors = [
        step.start(&[("n", 1)]).err(),
        step.replay(&[("n", 1)]).err(),
        step.replay_timed(&[("n", 1)]).err(),
        device.write(x, 0, &[0; 8]).err(),
        read(device, x).err(),
        stage(device, x, 1).err(),
        device.alloc(8, Memory::Weights).err(),
        device.capture(launches(kernels, buffers)).err(),
        device.load(&[program("e_3", 0)], &|_, _| ()).err(),
    ];
    assert_eq!(device.available(), None);
    errors.map(|error| error.expect("of a lost device")).into()
}

#[test]
fn a_lost_device_says_so_at_once_whatever_is_asked() {
    let fake = Fake::new();
    let place = Place::new();
    let mut lost = ready(&place, 0);
    fake.fail(1, LAUNCH_FAILED, true);
    let first = lost.step.replay(&[("n", 1)]).unwrap_err();
    assert!(first.is_lost(), "{first}");
    let text = first.to_string();
    assert!(
        text.starts_with("cuda:0 (Fake 0) is lost: ") && text.contains("CUDA_ERROR_LAUNCH_FAILED"),
        "{text}"
    );
    assert!(first.hint().unwrap().contains("restart gristmill"));
    fake.names();
    let errors = everything(&mut lost);
    assert!(
        errors
            .iter()
            .all(|error| error.is_lost() && error.to_string() == text),
        "{errors:?}"
    );
    assert_eq!(fake.names(), [""; 0]);
    // Another GPU still works, and so does this one after it is opened again.
    ready(&place, 1).step.replay(&[("n", 1)]).unwrap();
    drop(lost);
    ready(&place, 0).step.replay(&[("n", 1)]).unwrap();
    assert_eq!((fake.report().as_str(), fake.live().as_str()), ("", ""));
}

#[test]
fn a_client_that_was_terminated_is_lost() {
    let fake = Fake::new();
    let mut lost = ready(&Place::new(), 0);
    fake.fail(1, CLIENT_TERMINATED, true);
    let error = lost.step.replay(&[("n", 1)]).unwrap_err();
    assert!(error.is_lost(), "{error}");
}

/// As after a suspended process: the timeout has passed, but the work has ended meanwhile.
#[test]
fn work_that_ended_between_polls_is_not_lost() {
    let fake = Fake::new();
    let mut ready = ready(&Place::new(), 0);
    ready.device = ready.device.with_wait_limit(Some(Duration::ZERO));
    ready.step.replay(&[("n", 1)]).unwrap();
    fake.names();
    ready.step.replay(&[("n", 1)]).unwrap();
    let asked = fake
        .names()
        .iter()
        .position(|name| name.ends_with("Query"))
        .expect("the wait asks");
    fake.fail(asked + 1, NOT_READY, false);
    ready.step.replay(&[("n", 1)]).unwrap();
    assert!(fake.failed().ends_with("Query"), "{}", fake.failed());
    ready.step.replay(&[("n", 1)]).unwrap();
}

/// Objects that the kernel may use are not freed, since that would wait for it:
/// buffers, modules, the context.
#[test]
fn a_hanging_kernel_is_an_error_and_does_not_block() {
    let limit = Duration::from_millis(30);
    type Use = fn(&mut Ready) -> Result<(), Error>;
    let uses: [(&str, Use); 4] = [
        ("wait", |r| {
            r.step.start(&[("n", 1)]).and_then(|()| r.step.wait())
        }),
        ("replay", |r| r.step.replay(&[("n", 1)])),
        ("timed", |r| r.step.replay_timed(&[("n", 1)]).map(drop)),
        ("dropped", |r| {
            r.step.start(&[("n", 1)])?;
            r.step = r.device.capture(vec![])?;
            r.device.alloc(8, Memory::Weights).map(drop)
        }),
    ];
    for (name, run) in uses {
        let fake = Fake::new();
        let mut stuck = ready(&Place::new(), 0);
        stuck.device = stuck.device.with_wait_limit(Some(limit));
        fake.hang();
        let begin = Instant::now();
        let error = run(&mut stuck).unwrap_err();
        let text = error.to_string();
        assert!(
            error.is_lost() && text.contains("cuda:0 (Fake 0)") && text.contains("30ms"),
            "{name}: {text}"
        );
        assert!(
            everything(&mut stuck).iter().all(|e| e.to_string() == text),
            "{name}"
        );
        drop(stuck);
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{name}: {:?}",
            begin.elapsed()
        );
        assert_eq!(fake.report(), "", "{name}");
        assert!(
            fake.live().contains("context") && fake.live().contains("memory"),
            "{name}: {}",
            fake.live()
        );
    }
}

/// It is unknown whether the step has ended, so neither it nor its buffers may be freed.
#[test]
fn a_device_that_cannot_be_waited_for_is_lost_and_frees_nothing() {
    let fake = Fake::new();
    let mut ready = ready(&Place::new(), 0);
    ready.step.replay(&[("n", 1)]).unwrap();
    fake.refuse(c"cuStreamQuery", 0, SYSTEM);
    let record = 4;
    fake.fail(record, SYSTEM, false);
    let error = ready.step.start(&[("n", 1)]).unwrap_err();
    assert_eq!(fake.failed(), "cuEventRecord");
    assert!(error.to_string().contains("cuEventRecord"), "{error}");
    assert!(everything(&mut ready).iter().all(Error::is_lost));
    drop(ready);
    assert_eq!(fake.report(), "");
    assert!(fake.live().contains("executable graph"), "{}", fake.live());
}
