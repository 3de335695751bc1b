//! Measurement of an adapter, in a test program of its own since other tests would run
//! at the same time.
#![cfg(feature = "wgpu")]

use gristmill_backend::wgpu::{Limited, WgpuDevice};
use gristmill_runtime::store::Store;
use gristmill_runtime::{Device, Error};

/// An adapter without a row in the table is measured once, and the result is used when
/// it is opened again.
#[test]
fn unknown_adapters_are_measured() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("wgpu-measured");
    let _ = std::fs::remove_dir_all(&folder); // of the previous run
    let open = |limited: Limited| {
        let store = Store::open(&folder, 1 << 26).unwrap();
        WgpuDevice::with((0, None), store, &limited).unwrap()
    };
    let unnamed = Limited {
        unnamed: true,
        ..Limited::default()
    };
    let first = open(unnamed);
    // Times of a software rasteriser on a busy CPU may be implausible: that is a warning, and the
    // next start measures again.
    let warnings = first.warnings();
    assert!(
        matches!(&warnings[..], [] | [Error::NotMeasured { .. }]),
        "{warnings:?}"
    );
    let tries: Vec<_> = (0..50)
        .map(|_| first.measure())
        .take_while(|found| found.is_err())
        .collect();
    assert!(tries.len() < 50, "{:?}", tries.first());
    let device = open(unnamed);
    let machine = &device.target().machine;
    assert!(
        (1e8..1e14).contains(&machine.bandwidth) && (1e8..1e15).contains(&machine.operations),
        "{machine:?}"
    );
    let figures = format!("measured: bandwidth {} GB/s", machine.bandwidth / 1e9);
    assert!(
        device
            .describe()
            .iter()
            .any(|line| line.starts_with(&figures)),
        "{figures}: {:?}",
        device.describe()
    );
    assert!(device.warnings().is_empty(), "{:?}", device.warnings());
    let again = open(unnamed);
    assert_eq!(again.target().machine, *machine);
    // A software rasteriser is as fast as its CPU, and is not measured.
    let program = open(Limited::default());
    if program.measure().unwrap().is_none() {
        assert_ne!(program.target().machine.bandwidth, machine.bandwidth);
    }
}
