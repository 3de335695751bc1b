//! Clients that ask at the same time, each in a thread.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the stack of a client's thread.
pub const STACK: usize = 512 << 10;

/// Does the things of numbers below `count`, each client the next one as soon as it is done with another, as long as that says true: a closed loop. Tells how many clients there was no thread for.
pub fn closed(count: usize, clients: usize, each: &(impl Fn(usize) -> bool + Sync)) -> usize {
    let next = AtomicUsize::new(0);
    let client = || {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= count || !each(nth) {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        let spawn = |_: &usize| std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, client).is_err();
        (0..clients.min(count)).filter(spawn).count()
    })
}
