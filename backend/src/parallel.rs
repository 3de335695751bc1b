//! Independent tasks on several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// Returns the number of cores available to this process.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Lowers the priority of this thread, and of the threads and processes that it starts, so that
/// background work delays decode steps little. A failure is ignored.
pub fn yield_to_foreground() {
    // Elsewhere the priority belongs to the whole process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(BACKGROUND_NICENESS);
}

/// Niceness of background threads: a tenth of a normal thread's share of a busy core.
#[cfg(target_os = "linux")]
const BACKGROUND_NICENESS: i32 = 10;

/// Calls `work` for each index below `count` on at most `threads` threads.
///
/// `done` receives each result on the caller's thread, in order of completion. After an error no
/// new task starts, and that error is returned.
pub fn parallel_for<T: Send, E: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> Result<T, E> + Sync,
    mut done: impl FnMut(usize, T) -> Result<(), E>,
) -> Result<(), E> {
    if cfg!(target_family = "wasm") {
        return (0..count).try_for_each(|number| done(number, work(number)?));
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(count) {
            let send = send.clone();
            let (work, next, failed) = (&work, &next, &failed);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count || failed.load(Ordering::Relaxed) {
                        return;
                    }
                    // fails only after the receiver met an error
                    let _ = send.send((number, work(number)));
                }
            });
        }
        drop(send);
        let result = receive
            .into_iter()
            .try_for_each(|(number, result)| done(number, result?));
        failed.store(result.is_err(), Ordering::Relaxed);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_runtime::Error;

    #[test]
    fn everything_is_done_once_and_an_error_ends_it() {
        for threads in 1..4 {
            let mut seen = [0; 20];
            let add = |number: usize, square: usize| {
                seen[number] += square;
                Ok::<(), Error>(())
            };
            parallel_for(20, threads, |n| Ok(n * n), add).unwrap();
            assert!(seen.iter().enumerate().all(|(n, &s)| s == n * n));
            let work = |n| {
                if n == 3 {
                    Err(Error::invalid("three", "is not wanted"))
                } else {
                    Ok(n)
                }
            };
            assert!(
                parallel_for(1000, threads, work, |_, _| Ok(()))
                    .unwrap_err()
                    .to_string()
                    .contains("three")
            );
        }
        parallel_for(
            0,
            4,
            |_| Ok(()),
            |_, _| Err(Error::invalid("nothing", "comes")),
        )
        .unwrap();
    }
}
