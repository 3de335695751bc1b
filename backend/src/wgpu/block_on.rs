//! Futures of wgpu, which are ready at once.

use std::future::Future;
use std::pin::pin;
use std::task::{Poll, Waker};

/// What a future gives that is ready: without a browser all of wgpu's are.
pub fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = std::task::Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}
