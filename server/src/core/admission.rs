//! Admission control for request parsing.

use crate::core::client::network;
use crate::core::error::RequestError;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limits the requests that are parsed at a time, as parsing competes with the model for cores.
/// Each client may parse one request at a time, so that a client with hundreds of connections does
/// not delay all others.
pub struct Admission {
    turns: Arc<Semaphore>,
    /// Semaphore of each client that holds a turn or waits for one.
    clients: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    /// Permits to wait for work elsewhere without a turn.
    aside: Arc<Semaphore>,
}

/// Permit to parse a request, held until it is dropped.
pub struct Turn {
    turn: OwnedSemaphorePermit,
    own: OwnedSemaphorePermit,
}

/// Maximum requests that wait for work elsewhere without a turn; further ones keep theirs.
const MAX_ASIDE: usize = 32;

/// Turn of the request whose blocking work runs on this thread.
struct CurrentTurn {
    /// Whether the client still waits.
    here: Arc<AtomicBool>,
    turn: Option<Turn>,
    /// Permits to wait without a turn.
    waiting: Arc<Semaphore>,
}

thread_local! {
    static CURRENT: RefCell<Option<CurrentTurn>> = const { RefCell::new(None) };
}

/// Ends the current turn when it is dropped.
struct EndOfTurn;

impl Drop for EndOfTurn {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

/// Marks the client as gone when it is dropped with the request's future.
struct Here(Arc<AtomicBool>);

impl Drop for Here {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Runs work that happens in another process. The request's turn is free for others meanwhile. The
/// work gets a function that returns whether the client left.
pub fn aside<T>(work: impl FnOnce(&dyn Fn() -> bool) -> T) -> T {
    let Some(mut current) = CURRENT.take() else {
        return work(&|| false);
    };
    let waits = current.waiting.clone().try_acquire_owned();
    let semaphores = match (waits.is_ok(), current.turn.take()) {
        (true, Some(turn)) => Some((turn.turn.semaphore().clone(), turn.own.semaphore().clone())),
        (_, turn) => {
            current.turn = turn;
            None
        }
    };
    let here = current.here.clone();
    let done = work(&|| !here.load(Ordering::Relaxed));
    if let Some((turns, own)) = semaphores {
        let runtime = tokio::runtime::Handle::current();
        // Permits are taken in the order of `Admission::turn`.
        current.turn = runtime.block_on(async {
            let own = own.acquire_owned().await.ok()?;
            let turn = turns.acquire_owned().await.ok()?;
            Some(Turn { turn, own })
        });
    }
    drop(waits);
    CURRENT.set(Some(current));
    done
}

impl Admission {
    /// Admits at most `turns` requests at a time.
    pub fn new(turns: usize) -> Admission {
        Admission {
            turns: Arc::new(Semaphore::new(turns)),
            clients: Mutex::default(),
            aside: Arc::new(Semaphore::new(MAX_ASIDE)),
        }
    }
    /// Waits for a turn of this client.
    pub async fn turn(&self, client: IpAddr) -> Turn {
        let own = self.client_semaphore(client);
        // These semaphores are never closed.
        let unclosed = "a semaphore that is never closed";
        let own = own.acquire_owned().await.expect(unclosed);
        Turn {
            turn: self.turns.clone().acquire_owned().await.expect(unclosed),
            own,
        }
    }
    /// Runs blocking work (templates, tokenisation, grammars) off the connection threads, in the
    /// client's turn.
    ///
    /// # Errors
    /// The error that the work returns, or an internal error if it panicked.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        client: IpAddr,
        work: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        // The turn ends with the work, even if the client has disconnected.
        let turn = self.turn(client).await;
        let here = Here(Arc::new(AtomicBool::new(true)));
        let current = CurrentTurn {
            here: here.0.clone(),
            turn: Some(turn),
            waiting: self.aside.clone(),
        };
        let done = tokio::task::spawn_blocking(move || {
            CURRENT.set(Some(current));
            // Ends the turn, even if the work panics.
            let _end = EndOfTurn;
            work()
        });
        done.await.unwrap_or_else(|_| {
            Err(RequestError::internal(
                "the request failed; the server's log says why",
            ))
        })
    }
    fn client_semaphore(&self, client: IpAddr) -> Arc<Semaphore> {
        let client = network(client);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = clients.get(&client).and_then(Weak::upgrade) {
            return own;
        }
        clients.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(1));
        clients.insert(client, Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_client_waits_behind_itself_alone() {
        let admission = Admission::new(2);
        let (many, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let first = poll(pin!(admission.turn(many))).expect("a turn is free");
        let mut second = pin!(admission.turn(many));
        assert!(poll(second.as_mut()).is_none(), "it has one already");
        let others = poll(pin!(admission.turn(other))).expect("the other turn is free for others");
        let mut third = pin!(admission.turn(IpAddr::from([10, 0, 0, 3])));
        assert!(poll(third.as_mut()).is_none(), "both turns are taken");
        drop(first);
        assert!(
            poll(third.as_mut()).is_some(),
            "whoever waited for a turn of all comes first"
        );
        assert!(poll(second.as_mut()).is_some());
        drop(others);
    }

    #[test]
    fn clients_that_left_are_forgotten() {
        let admission = Admission::new(1);
        for n in 0..100 {
            drop(poll(pin!(admission.turn(IpAddr::from([10, 0, 1, n])))).expect("a turn is free"));
        }
        assert_eq!(admission.clients.lock().unwrap().len(), 1);
    }
}
