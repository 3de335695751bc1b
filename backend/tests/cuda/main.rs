//! CUDA without a GPU: what the backend does when a call of the driver fails.
#![cfg(target_os = "linux")]

mod fake;
mod step;

use fake::{Fake, LAUNCH_FAILED, SYSTEM};
use step::{Attempts, Place, RIGHT, life};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn evidence() {
    let fake = Fake::new();
    for sticky in [false, true] {
        for n in 0.. {
            let place = Place::new();
            fake.reset();
            fake.fail(n, if sticky { LAUNCH_FAILED } else { SYSTEM }, sticky);
            let mut attempts = Attempts::default();
            let seen = catch_unwind(AssertUnwindSafe(|| life(&place, &mut attempts)));
            let failed = fake.failed();
            let errors: Vec<String> = attempts.errors.iter().map(|(at, e)| format!("{at}: {e}")).collect();
            let wrong = if seen.as_ref().is_ok_and(|s| s[..] == RIGHT) { String::new() } else { format!("{seen:?}") };
            let mut report: Vec<String> = fake.report().lines().map(str::to_owned).collect();
            report.dedup();
            eprintln!("sticky {sticky} n {n} {failed}: {wrong} live [{}] errors {errors:?} report {report:?}", fake.live());
            if n > 0 && failed.is_empty() {
                break;
            }
        }
    }
}
