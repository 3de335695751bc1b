//! Cancels the computation of masks that takes too long.

use llguidance::CancellationHandle;
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time of one mask. No other sequence runs meanwhile.
const MAX_MASK: Duration = Duration::from_secs(2);
/// Time between two looks at the computations.
const TICK: Duration = Duration::from_millis(100);
/// Looks without a computation after which the thread sleeps until there is one.
const IDLE_TICKS: u32 = 50;

#[derive(Default)]
struct Watched {
    /// Computations with their deadlines.
    running: Vec<(u64, Instant, CancellationHandle)>,
    count: u64,
    /// Whether the thread sleeps until it is woken.
    sleeps: bool,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched {
    running: Vec::new(),
    count: 0,
    sleeps: false,
});
static WAKE: Condvar = Condvar::new();
static THREAD: Once = Once::new();

/// Limit of a computation, until it is dropped.
pub struct Limit(u64);

/// Cancels a computation if it is not over after the maximum time of a mask.
pub fn cancel_late(handle: CancellationHandle) -> Limit {
    THREAD.call_once(|| {
        // Without the thread, the processor time of an answer's masks is still bounded.
        let _ = std::thread::Builder::new()
            .name("mask limits".into())
            .spawn(watch);
    });
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    watched.count += 1;
    let id = watched.count;
    watched
        .running
        .push((id, Instant::now() + MAX_MASK, handle));
    if std::mem::take(&mut watched.sleeps) {
        WAKE.notify_one();
    }
    Limit(id)
}

impl Drop for Limit {
    fn drop(&mut self) {
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        watched.running.retain(|entry| entry.0 != self.0);
    }
}

fn watch() {
    let mut idle = 0;
    loop {
        std::thread::sleep(TICK);
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        idle = if watched.running.is_empty() {
            idle + 1
        } else {
            0
        };
        let now = Instant::now();
        watched
            .running
            .iter()
            .filter(|entry| entry.1 < now)
            .for_each(|entry| entry.2.cancel());
        if idle >= IDLE_TICKS {
            watched.sleeps = true;
            drop(
                WAKE.wait_while(watched, |watched| watched.sleeps)
                    .unwrap_or_else(PoisonError::into_inner),
            );
            idle = 0;
        }
    }
}
