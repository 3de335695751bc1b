//! Running requests by their name, so that clients can abort them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Running requests by their name. A client may have several of one name.
#[derive(Clone, Default)]
pub struct RunningRequests(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    all: Vec<Running>,
}

struct Running {
    number: u64,
    name: String,
    abort: oneshot::Sender<()>,
}

/// A running request; it is removed when this is dropped.
pub struct RunningGuard {
    requests: RunningRequests,
    number: u64,
}

impl RunningRequests {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Adds a request; the receiver gets its abortion.
    pub fn add(&self, name: String) -> (RunningGuard, oneshot::Receiver<()>) {
        let (abort, aborted) = oneshot::channel();
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.all.push(Running {
            number,
            name,
            abort,
        });
        let requests = self.clone();
        (RunningGuard { requests, number }, aborted)
    }
    /// Aborts the requests of these names.
    pub fn abort(&self, names: &[String]) {
        let mut state = self.lock();
        let named = |running: &mut Running| names.contains(&running.name);
        for running in state.all.extract_if(.., named) {
            // It may have ended just now.
            let _ = running.abort.send(());
        }
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        let number = self.number;
        self.requests
            .lock()
            .all
            .retain(|running| running.number != number);
    }
}
