//! Runs futures of wgpu to completion.

use std::future::Future;
use std::pin::pin;
use std::task::{Poll, Waker};

/// Polls a future until it is ready; outside a browser, wgpu's futures are ready at once.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = std::task::Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}
