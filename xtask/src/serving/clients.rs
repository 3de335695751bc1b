//! Concurrent clients, one thread each.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Stack size of a client's thread, in bytes.
pub const STACK: usize = 512 << 10;

/// Runs a closed loop: each client calls `each` with the next number below `count` until it returns
/// false. Returns the number of clients whose thread could not be started.
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
