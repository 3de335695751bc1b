//! An unknown GPU is measured when it is first opened, and only then. Failures meanwhile do
//! not prevent its use.

use crate::assert_clean;
use crate::fake::{Fake, LAUNCH_FAILED, SYSTEM};
use crate::step::{Attempts, Place, RIGHT, life};
use gristmill_backend::cuda::CudaDevice;
use gristmill_runtime::{Device, Error};
use gristmill_uop::costs::Costs;
use gristmill_uop::machine::Machine;
use gristmill_uop::measured::Measured;

/// A card with half of an H200's multiprocessors, with kernel durations: a read of 256 MiB takes
/// 200 us, and so on.
fn unknown() -> Fake {
    let fake = Fake::new();
    known(&fake);
    fake
}
fn known(fake: &Fake) {
    fake.units(66);
    fake.takes(c"u32x4 x[8]", 200_000, 0);
    fake.takes(c"1664525u", 5_000, 900);
    fake.takes(c"p1[GROUP_INDEX] + 1", 2_100, 0);
    fake.takes(c"i < count; i++) BARRIER", 3_000, 30);
}

fn measured() -> Costs {
    let bandwidth = (256 << 20) as f64 / 200e-6;
    let (launch, barrier, latency) = (Some(2.1e-6), Some(30e-9), Some(900e-9));
    Costs {
        bandwidth: Some(bandwidth),
        launch,
        barrier,
        latency,
        ..Costs::default()
    }
    .rounded()
}

#[test]
fn an_unknown_card_is_measured_once() {
    let (fake, place) = (unknown(), Place::new());
    let first = CudaDevice::with(0, place.store()).unwrap();
    assert!(first.warnings().is_empty(), "{:?}", first.warnings());
    let machine = first.target().machine.clone();
    assert_eq!((machine.units, machine.name.as_ref()), (66, "sm_90a"));
    assert_eq!(machine, measured().plan(machine.clone()));
    // Launches are slower than an H200's, and the bandwidth is lower.
    let h200 = Machine::named("h200").unwrap();
    assert!(
        machine.launch > h200.launch && machine.bandwidth < h200.bandwidth,
        "{machine:?}"
    );
    let said = first.describe().join("\n");
    assert!(
        said.contains("costs, as measured: ")
            && said.contains(&format!("measured: {}", measured().text())),
        "{said}"
    );
    drop(first);
    // It has become slower since, but is not measured again.
    let before = fake.compilations();
    fake.takes(c"", 1, 1);
    fake.names();
    let again = CudaDevice::with(0, place.store()).unwrap();
    assert_eq!(
        (&again.target().machine, fake.compilations()),
        (&machine, before)
    );
    assert!(!fake.names().contains(&"cuGraphLaunch".into()));
    drop(again);
    assert_clean(&fake, "two lives");
}

#[test]
fn a_known_card_is_measured_where_that_is_asked_for() {
    let (fake, place) = (unknown(), Place::new());
    fake.units(132);
    let device = CudaDevice::with(0, place.store()).unwrap();
    let said = |device: &CudaDevice| device.describe().join("\n");
    assert!(
        said(&device).contains("costs, of the table: ") && said(&device).contains("not measured"),
        "{}",
        said(&device)
    );
    assert_eq!(device.measure().unwrap(), Some(measured()));
    assert!(
        said(&device).contains(&format!("measured: {}", measured().text())),
        "{}",
        said(&device)
    );
    assert_eq!(device.target().machine, Machine::named("h200").unwrap());
    drop(device);
    assert_eq!(
        CudaDevice::with(0, place.store()).unwrap().target().machine,
        Machine::named("h200").unwrap()
    );
    assert_clean(&fake, "measuring");
}

/// Returns the calls of opening an unmeasured card, counted from 1; of frequent functions only the
/// first and last few.
fn calls(fake: &Fake) -> Vec<usize> {
    const FEW: usize = 3;
    fake.names();
    drop(CudaDevice::with(0, Place::new().store()).unwrap());
    let names = fake.names();
    let of = |(n, name): (usize, &String)| {
        let times = |part: &[String]| part.iter().filter(|other| *other == name).count();
        (times(&names[..n]) < FEW || times(&names[n..]) <= FEW).then_some(n + 1)
    };
    names.iter().enumerate().filter_map(of).collect()
}

#[test]
fn a_call_that_fails_leaves_a_device_that_works() {
    let fake = unknown();
    let (mut warned, mut refused) = (0, 0);
    for n in calls(&fake) {
        fake.reset();
        known(&fake);
        let place = Place::new();
        fake.fail(n, SYSTEM, false);
        let opened = CudaDevice::with(0, place.store());
        let failed = fake.failed();
        let after = format!("call {n}, {failed}");
        match opened {
            Ok(device) => {
                let warnings = device.warnings();
                let machine = &device.target().machine;
                match &warnings[..] {
                    [] => assert_eq!(*machine, measured().plan(machine.clone()), "{after}"),
                    [Error::NotMeasured { .. }] => warned += 1,
                    _ => panic!("{after}: {warnings:?}"),
                }
            }
            Err(_) => refused += 1,
        }
        assert_clean(&fake, &after);
        assert_eq!(life(&place, &mut Attempts::new(1)), RIGHT, "{after}");
        assert_clean(&fake, &after);
    }
    assert!(
        warned > 30 && refused > 10,
        "{warned} warnings, {refused} refusals"
    );
}

#[test]
fn a_card_that_is_lost_while_it_is_measured_is_lost() {
    let (fake, place) = (unknown(), Place::new());
    fake.names();
    drop(CudaDevice::with(0, place.store()).unwrap());
    let launch = fake
        .names()
        .iter()
        .position(|name| name == "cuGraphLaunch")
        .unwrap()
        + 1;
    fake.reset();
    known(&fake);
    fake.fail(launch, LAUNCH_FAILED, true);
    let error = CudaDevice::with(0, Place::new().store()).err().unwrap();
    assert!(
        error.is_lost() || matches!(error, Error::Driver { .. }),
        "{error}"
    );
    assert_clean(&fake, "a loss");
}
