//! Events of a model's KV cache, for routers: numbered batches, their log, and subscriptions.
//!
//! The replicas of a model count as one worker: a block is stored with its first copy and removed
//! with its last one. A bounded log keeps the newest batches. A subscriber pulls from it, so a slow
//! one has no queue of its own: once the log has dropped its next batch, it gets the present state.

use crate::core::error::RequestError;
use gristmill_llm::sched::{PrefixEvent, StoredPage};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Maximum subscribers of a model: a router has one subscription.
const MAX_SUBSCRIBERS: usize = 64;
/// Maximum events of a batch. With 64 tokens each, its message has about 80 kB.
const MAX_BATCH_EVENTS: usize = 256;
/// Maximum events of the log. A stored block takes about 350 bytes.
const MAX_LOG_EVENTS: usize = 1 << 16;
/// Batches that a subscription takes from the log at a time.
const MAX_TAKEN: usize = 16;
/// Sequence numbers from here on are refused: a subscription continues after the given one.
const MAX_NUMBER: u64 = 1 << 62;

/// A numbered batch of events.
#[derive(Clone, Debug)]
pub struct KvEventBatch {
    /// Sequence number; consecutive within a subscription.
    pub number: u64,
    /// Time of the events, in seconds since the Unix epoch.
    pub time: f64,
    /// The events in their order, at least one.
    pub events: Arc<[PrefixEvent]>,
}

/// The events of one model, and the blocks that they add up to.
pub struct KvEventLog {
    state: Mutex<State>,
    /// Number of the last batch.
    last: watch::Sender<u64>,
    subscribers: AtomicUsize,
}

struct State {
    /// Hashes of each replica's blocks, and how often each is stored.
    held: Vec<FxHashMap<u64, usize>>,
    /// All blocks, and the number of replicas that hold each.
    blocks: FxHashMap<u64, (StoredPage, usize)>,
    batches: VecDeque<KvEventBatch>,
    /// Events of all batches in the log.
    events: usize,
    /// Number of the last batch.
    last: u64,
    /// Whether numbers are unambiguous: false once a subscriber continues from a larger number.
    replays: bool,
}

/// Pulls the events of a model from its log.
pub struct KvSubscription {
    log: Arc<KvEventLog>,
    last: watch::Receiver<u64>,
    /// Number of the last batch that was taken from the log.
    position: u64,
    /// Difference, modulo 2^64, between the subscription's numbers and the log's.
    offset: u64,
    ready: VecDeque<KvEventBatch>,
}

/// Returns the time since the Unix epoch, in seconds.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

impl KvEventLog {
    /// Creates an empty log for that many replicas.
    pub fn new(replicas: usize) -> KvEventLog {
        // A restarted server begins after all numbers of its predecessor, so that a subscriber
        // that resumes gets the present state.
        let first = (now() * 1e6) as u64;
        KvEventLog {
            state: Mutex::new(State {
                held: vec![FxHashMap::default(); replicas],
                blocks: FxHashMap::default(),
                batches: VecDeque::new(),
                events: 0,
                last: first,
                replays: true,
            }),
            last: watch::Sender::new(first),
            subscribers: AtomicUsize::new(0),
        }
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Records changes of a replica's prefix cache.
    pub fn apply(&self, replica: usize, changes: &[PrefixEvent]) {
        if changes.is_empty() {
            return;
        }
        let mut state = self.lock();
        let before = state.last;
        let mut events = Vec::new();
        for change in changes {
            state.apply(replica, change, &mut events);
        }
        for part in events.chunks(MAX_BATCH_EVENTS) {
            state.push(part.into());
        }
        if state.last != before {
            self.last.send_replace(state.last);
        }
    }
    /// Begins a subscription after the batch `from`; 0 begins with the present state, as does any
    /// number that the log does not reach back to.
    ///
    /// # Errors
    /// When there are too many subscribers, or the number is out of range.
    pub fn subscribe(self: &Arc<KvEventLog>, from: u64) -> Result<KvSubscription, RequestError> {
        if from >= MAX_NUMBER {
            let message = format!("it must be below {MAX_NUMBER}; 0 begins with the present state");
            return Err(RequestError::parameter("start_sequence_number", message));
        }
        if self.subscribers.fetch_add(1, Ordering::Relaxed) >= MAX_SUBSCRIBERS {
            self.subscribers.fetch_sub(1, Ordering::Relaxed);
            return Err(RequestError::subscribers(MAX_SUBSCRIBERS));
        }
        let mut subscription = KvSubscription {
            log: self.clone(),
            last: self.last.subscribe(),
            position: from,
            offset: 0,
            ready: VecDeque::new(),
        };
        let mut state = self.lock();
        if from > state.last {
            state.replays = false;
        }
        if from == 0 {
            let parts = state.snapshot();
            let number = state.last - parts.len() as u64;
            subscription.restart(&state, parts, number);
        } else if !state.replays || from < state.oldest() {
            subscription.restart(&state, state.snapshot(), from);
        }
        drop(state);
        Ok(subscription)
    }
}

impl State {
    fn apply(&mut self, replica: usize, change: &PrefixEvent, events: &mut Vec<PrefixEvent>) {
        let held = &mut self.held[replica];
        match change {
            PrefixEvent::Stored(page) => {
                // Blocks of sequences with adapters have a first parent that is no block. Routers
                // find blocks by tokens alone.
                if page
                    .parent
                    .is_some_and(|parent| !held.contains_key(&parent))
                {
                    return;
                }
                let times = held.entry(page.hash).or_default();
                *times += 1;
                if *times > 1 {
                    return;
                }
                let (_, replicas) = self
                    .blocks
                    .entry(page.hash)
                    .or_insert_with(|| (page.clone(), 0));
                *replicas += 1;
                if *replicas == 1 {
                    events.push(change.clone());
                }
            }
            PrefixEvent::Removed(hash) => {
                let Some(times) = held.get_mut(hash) else {
                    return;
                };
                *times -= 1;
                if *times == 0 {
                    held.remove(hash);
                    self.release(*hash, events);
                }
            }
            PrefixEvent::Cleared => {
                let mut removed = Vec::new();
                for hash in std::mem::take(held).into_keys() {
                    self.release(hash, &mut removed);
                }
                if self.blocks.is_empty() && !removed.is_empty() {
                    removed = vec![PrefixEvent::Cleared];
                }
                events.extend(removed);
            }
        }
    }
    /// Removes a block from one of the replicas that hold it.
    fn release(&mut self, hash: u64, events: &mut Vec<PrefixEvent>) {
        if let Some((_, replicas)) = self.blocks.get_mut(&hash) {
            *replicas -= 1;
            if *replicas == 0 {
                self.blocks.remove(&hash);
                events.push(PrefixEvent::Removed(hash));
            }
        }
    }
    fn push(&mut self, events: Arc<[PrefixEvent]>) {
        self.last += 1;
        self.events += events.len();
        self.batches.push_back(KvEventBatch {
            number: self.last,
            time: now(),
            events,
        });
        while self.events > MAX_LOG_EVENTS
            && let Some(dropped) = self.batches.pop_front()
        {
            self.events -= dropped.events.len();
        }
    }
    /// Returns the smallest number that the log continues from.
    fn oldest(&self) -> u64 {
        self.last - self.batches.len() as u64
    }
    /// Returns the present state: a cleared event, and all blocks with parents first, in parts of a
    /// batch. Blocks whose parent was removed cannot be found and are left out.
    fn snapshot(&self) -> Vec<Arc<[PrefixEvent]>> {
        let mut children: FxHashMap<Option<u64>, Vec<&StoredPage>> = FxHashMap::default();
        for (page, _) in self.blocks.values() {
            children.entry(page.parent).or_default().push(page);
        }
        let mut events = vec![PrefixEvent::Cleared];
        let mut next = children.remove(&None).unwrap_or_default();
        while let Some(page) = next.pop() {
            events.push(PrefixEvent::Stored(page.clone()));
            next.extend(children.remove(&Some(page.hash)).unwrap_or_default());
        }
        events.chunks(MAX_BATCH_EVENTS).map(Arc::from).collect()
    }
}

impl KvSubscription {
    /// Continues with the present state, numbered after `number`.
    ///
    /// A subscriber accepts only the number after its last one, so its numbers may differ from the
    /// log's from now on. They are then smaller: should it resume where the log has those numbers,
    /// it gets events again that it has applied already, which ends in the same state.
    fn restart(&mut self, state: &State, parts: Vec<Arc<[PrefixEvent]>>, number: u64) {
        let time = now();
        let numbered = (number + 1..).zip(parts);
        self.ready = numbered
            .map(|(number, events)| KvEventBatch {
                number,
                time,
                events,
            })
            .collect();
        self.position = state.last;
        self.offset = (number + self.ready.len() as u64).wrapping_sub(state.last);
    }
    /// Takes batches from the log, or the present state if the log has dropped the next one.
    fn take(&mut self) {
        let log = self.log.clone();
        let state = log.lock();
        if self.position < state.oldest() {
            let number = self.position.wrapping_add(self.offset);
            return self.restart(&state, state.snapshot(), number);
        }
        let seen = (self.position - state.oldest()) as usize;
        for batch in state.batches.iter().skip(seen).take(MAX_TAKEN) {
            self.position = batch.number;
            self.ready.push_back(KvEventBatch {
                number: batch.number.wrapping_add(self.offset),
                ..batch.clone()
            });
        }
    }
    /// Waits for the next batch.
    pub async fn next(&mut self) -> KvEventBatch {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return batch;
            }
            self.last.mark_unchanged();
            self.take();
            if self.ready.is_empty() && self.last.changed().await.is_err() {
                // The log, which the subscription holds, has the sender.
                return std::future::pending().await;
            }
        }
    }
}

impl Drop for KvSubscription {
    fn drop(&mut self) {
        self.log.subscribers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PrefixEvent::{Cleared, Removed};
    use futures_util::FutureExt;
    use std::collections::BTreeSet;

    fn stored(hash: u64, parent: Option<u64>) -> PrefixEvent {
        PrefixEvent::Stored(StoredPage {
            hash,
            parent,
            tokens: [hash as u32].into(),
        })
    }

    /// A subscriber that accepts batches as smg does.
    #[derive(Default)]
    struct Router {
        last: u64,
        blocks: BTreeSet<u64>,
        batches: usize,
    }

    impl Router {
        /// Reads until nothing is left.
        fn read(&mut self, from: &mut KvSubscription) {
            while let Some(batch) = from.next().now_or_never() {
                assert!(self.last == 0 || batch.number == self.last + 1, "a gap");
                self.last = batch.number;
                self.batches += 1;
                for event in batch.events.iter() {
                    match event {
                        PrefixEvent::Stored(page) => {
                            let parent = page.parent;
                            assert!(parent.is_none_or(|hash| self.blocks.contains(&hash)));
                            self.blocks.insert(page.hash);
                        }
                        Removed(hash) => _ = self.blocks.remove(hash),
                        Cleared => self.blocks.clear(),
                    }
                }
            }
        }
        fn read_from(&mut self, log: &Arc<KvEventLog>) {
            let mut subscription = log.subscribe(self.last).expect("a subscription");
            self.read(&mut subscription);
        }
    }

    fn log(replicas: usize) -> Arc<KvEventLog> {
        Arc::new(KvEventLog::new(replicas))
    }

    #[test]
    fn a_subscriber_follows_and_resumes() {
        let log = log(1);
        log.apply(
            0,
            &[stored(1, None), stored(2, Some(1)), stored(3, Some(2))],
        );
        let (mut router, mut live) = (Router::default(), log.subscribe(0).expect("one"));
        router.read(&mut live);
        assert_eq!((router.blocks.len(), router.batches), (3, 1));
        log.apply(0, &[Removed(3), stored(4, Some(2))]);
        router.read(&mut live);
        assert_eq!(router.blocks, BTreeSet::from([1, 2, 4]));
        drop(live);
        // Replayed from its last number, without the present state.
        log.apply(0, &[stored(5, None)]);
        log.apply(0, &[Removed(4)]);
        router.read_from(&log);
        assert_eq!(
            (router.blocks, router.batches),
            (BTreeSet::from([1, 2, 5]), 4)
        );
    }

    #[test]
    fn replicas_are_one_worker() {
        let log = log(2);
        let (mut router, mut live) = (Router::default(), log.subscribe(0).expect("one"));
        log.apply(0, &[stored(1, None), stored(1, None), stored(2, Some(1))]);
        log.apply(1, &[stored(1, None)]);
        router.read(&mut live);
        let batches = router.batches;
        log.apply(0, &[Removed(1)]);
        log.apply(1, &[Removed(1), Removed(9)]);
        router.read(&mut live);
        // Another copy is left, so there is no event.
        assert_eq!((router.batches, router.blocks.len()), (batches, 2));
        log.apply(1, &[stored(1, None), stored(3, Some(1))]);
        log.apply(0, &[Cleared]);
        router.read(&mut live);
        assert_eq!(router.blocks, BTreeSet::from([1, 3]));
        log.apply(1, &[Cleared]);
        router.read(&mut live);
        assert!(router.blocks.is_empty());
    }

    #[test]
    fn pages_with_adapters_are_left_out() {
        let log = log(1);
        let other_root = Some(1 << 63);
        log.apply(0, &[stored(1, other_root), stored(2, Some(1))]);
        log.apply(0, &[Removed(2), Removed(1), stored(3, None)]);
        let mut router = Router::default();
        router.read_from(&log);
        assert_eq!(router.blocks, BTreeSet::from([3]));
    }

    #[test]
    fn a_subscriber_that_falls_behind_gets_the_present_state() {
        let log = log(1);
        let (mut router, mut slow) = (Router::default(), log.subscribe(0).expect("one"));
        router.read(&mut slow);
        let mut gone = Router {
            last: router.last,
            ..Router::default()
        };
        // Every block is removed again but the last 600.
        let all = MAX_LOG_EVENTS as u64;
        for hash in 1..=all {
            log.apply(0, &[stored(hash, None)]);
            if hash > 600 {
                log.apply(0, &[Removed(hash - 600)]);
            }
        }
        let present: BTreeSet<u64> = (all - 599..=all).collect();
        let read = router.batches;
        router.read(&mut slow);
        assert_eq!(router.blocks, present);
        assert_eq!(router.batches - read, 3, "601 events in parts of 256");
        gone.read_from(&log);
        assert_eq!(gone.blocks, present);
        assert!(log.lock().events <= MAX_LOG_EVENTS);
        // Both go on with numbers of their own, live or resumed.
        log.apply(0, &[stored(all + 1, None), Removed(all)]);
        router.read(&mut slow);
        gone.read_from(&log);
        assert_eq!(router.blocks, gone.blocks);
        assert!(!gone.blocks.contains(&all) && gone.blocks.contains(&(all + 1)));
    }

    #[test]
    fn a_subscriber_of_another_process_begins_anew() {
        let restarted = log(1);
        restarted.apply(0, &[stored(1, None)]);
        let last = restarted.lock().last;
        for number in [7, last - 5, last + 1_000_000] {
            let mut router = Router {
                last: number,
                blocks: BTreeSet::from([99]),
                ..Router::default()
            };
            router.read_from(&restarted);
            assert_eq!(router.blocks, BTreeSet::from([1]), "after {number}");
            // It would lose events if a larger number were taken for the log's.
            restarted.apply(0, &[stored(2, None)]);
            router.read_from(&restarted);
            assert_eq!(router.blocks, BTreeSet::from([1, 2]), "after {number}");
            restarted.apply(0, &[Removed(2)]);
        }
    }

    #[test]
    fn subscribers_are_bounded() {
        let log = log(1);
        let subscribe = || log.subscribe(0);
        let all: Vec<_> = (0..MAX_SUBSCRIBERS).map(|_| subscribe()).collect();
        assert!(all.iter().all(Result::is_ok));
        let refused = subscribe().err().expect("one too many");
        assert_eq!(refused.code, Some("too_many_subscribers"));
        drop(all);
        assert!(subscribe().is_ok() && log.subscribe(u64::MAX).is_err());
    }
}
