//! Tests of the CUDA backend on a fake driver, without a GPU: behaviour when a driver call fails.
#![cfg(target_os = "linux")]

mod fake;
mod lost;
mod measure;
mod step;
mod usual;

use fake::{Fake, LAUNCH_FAILED, SYSTEM};
use gristmill_runtime::Error;
use step::{Attempts, Place, RIGHT, life};

/// Driver functions whose failure need not reach the caller as an error.
const FORGIVEN: &[&str] = &[
    // During destruction: retried, or the result is irrelevant.
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuStreamQuery",
    "cuDevicePrimaryCtxRelease_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuModuleUnload",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    // Fewer staging buffers suffice.
    "cuMemHostAlloc",
    "cuEventCreate",
    // The stored code is compiled again.
    "cuModuleLoadData",
];

/// Asserts that there are no violations and no remaining objects.
fn assert_clean(fake: &Fake, after: &str) {
    assert_eq!(
        (fake.report().as_str(), fake.live().as_str()),
        ("", ""),
        "{after}"
    );
}

/// Asserts that an error names the GPU and the failed call, and has a hint.
fn assert_said(error: &Error, failed: &str, after: &str) {
    let text = error.to_string();
    let device = match failed {
        "cuDriverGetVersion" | "cuInit" | "cuDeviceGetCount" | "cuDeviceGet" => "cuda:",
        "cuDeviceGetName" => "cuda:0: ",
        _ => "cuda:0 (Fake 0)",
    };
    let what = match failed {
        "cuStreamQuery" | "cuEventQuery" => "a kernel or copy",
        "cuStreamSynchronize" => "a copy",
        "cuGraphInstantiateWithFlags" => "cuGraphInstantiate",
        name => name.trim_end_matches("_v2"),
    };
    assert!(
        text.contains(device) && text.contains(what),
        "{after}: {text}"
    );
    assert!(
        text.contains("CUDA_ERROR_") && error.hint().is_some(),
        "{after}: {text}"
    );
}

#[test]
fn nothing_is_wrong_where_nothing_fails() {
    let fake = Fake::new();
    let mut attempts = Attempts::new(1);
    assert_eq!(life(&Place::new(), &mut attempts), RIGHT);
    assert!(attempts.errors.is_empty(), "{:?}", attempts.errors);
    assert_clean(&fake, "a life");
}

/// Fails each call of a device's life once. A retry continues normally; giving up leaks nothing.
#[test]
fn a_call_that_fails_is_an_error_that_leaves_nothing_behind() {
    let fake = Fake::new();
    let place = Place::new();
    life(&place, &mut Attempts::new(1));
    let mut heard = 0;
    for tries in [1, 2] {
        for n in 1.. {
            fake.reset();
            fake.fail(n, SYSTEM, false);
            let mut attempts = Attempts::new(tries);
            let seen = life(&place, &mut attempts);
            let failed = fake.failed();
            if failed.is_empty() {
                assert!(n > 100, "{n} calls");
                break;
            }
            let after = format!(
                "call {n}, {failed}, of {tries} tries: {:?}",
                attempts.errors
            );
            match &attempts.errors[..] {
                [] => assert!(FORGIVEN.contains(&&*failed) && seen == RIGHT, "{after}"),
                [(_, error)] => {
                    heard += 1;
                    assert_said(error, &failed, &after);
                    assert!(
                        !error.is_lost() && (tries == 1 || seen == RIGHT),
                        "{after}: {seen:?}"
                    );
                }
                _ => panic!("{after}"),
            }
            assert_clean(&fake, &after);
        }
    }
    assert!(heard > 100, "{heard} errors");
}

/// Fails each driver call in a session with a fatal error, which all later calls return as well.
#[test]
fn a_call_that_ends_the_device_makes_it_lost() {
    let fake = Fake::new();
    let place = Place::new();
    let mut lost = 0;
    for n in 1.. {
        fake.reset();
        fake.fail(n, LAUNCH_FAILED, true);
        let mut attempts = Attempts::new(2);
        let seen = life(&place, &mut attempts);
        let failed = fake.failed();
        if failed.is_empty() {
            assert!(n > 100, "{n} calls");
            break;
        }
        let after = format!("call {n}, {failed}: {:?}", attempts.errors);
        match &attempts.errors[..] {
            [] => assert!(FORGIVEN.contains(&&*failed) && seen == RIGHT, "{after}"),
            // The device was opened again, and nothing of the first was kept.
            [("open", error)] => {
                assert_said(error, &failed, &after);
                assert_eq!(seen, RIGHT, "{after}");
            }
            [(_, first), later @ ..] => {
                lost += 1;
                assert_said(first, &failed, &after);
                let same =
                    |error: &Error| error.is_lost() && error.to_string() == first.to_string();
                assert!(
                    same(first) && !later.is_empty() && later.iter().all(|(_, e)| same(e)),
                    "{after}"
                );
            }
        }
        assert_clean(&fake, &after);
    }
    assert!(lost > 50, "{lost} losses");
}

#[test]
fn a_compiler_that_fails_is_an_error_too() {
    let fake = Fake::new();
    for n in 1.. {
        fake.reset();
        fake.fail_compiler(n);
        let mut attempts = Attempts::new(2);
        assert_eq!(
            life(&Place::new(), &mut attempts),
            RIGHT,
            "call {n}: {:?}",
            attempts.errors
        );
        assert_clean(&fake, &format!("call {n} of the compiler"));
        match &attempts.errors[..] {
            [] if n > 20 => break,
            // The log of a successful compilation may be missing.
            [] => {}
            [(_, error)] => {
                assert!(
                    matches!(error, Error::Lacking { .. } | Error::Compile { .. }),
                    "call {n}: {error}"
                );
                assert!(
                    ["nvrtc", "querying", "reading"]
                        .iter()
                        .any(|text| error.to_string().contains(text)),
                    "call {n}: {error}"
                );
            }
            errors => panic!("call {n}: {errors:?}"),
        }
    }
}
