//! Bounded request queue, fair per client, from which the replicas of a model take requests.

use crate::core::balance::{Demand, ReplicaState, choose};
use crate::core::models::policy::KeepAlive;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An entry of the queue.
pub trait Waiting {
    /// Address of the client that sent it.
    fn client(&self) -> IpAddr;
    /// Returns whether the client has disconnected.
    fn is_abandoned(&self) -> bool;
    /// Receives the number of entries before this one, when it is queued and whenever that may have
    /// changed.
    fn report_position(&self, others: usize);
    /// Returns what it asks of the replica that takes it.
    fn demand(&self) -> Demand<'_> {
        Demand::default()
    }
}

/// Reason why an entry was not queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueError {
    /// The queue is full, with this number of entries.
    Full(usize),
    /// The queue is closed for good.
    Closed,
}

/// Bounded queue with round robin per client: FIFO for the entries of one client, and between two
/// entries of the same client every other client has a turn.
pub struct Queue<T> {
    lines: Mutex<ClientQueues<T>>,
    changed: Condvar,
    most: usize,
}

struct ClientQueues<T> {
    /// The entries of each client; no list is empty, and the first is next.
    lines: VecDeque<(IpAddr, VecDeque<T>)>,
    closed: bool,
    /// The consumers, by which the one to take an entry is chosen.
    replicas: Vec<ReplicaState>,
    /// Entries that are still handed out before the consumers have to stop; `None` without an
    /// eviction.
    turns: Option<usize>,
    /// How long the consumers stay without entries, and since when all of them are idle.
    stay: KeepAlive,
    idle: Instant,
    /// When the keep-alive of the idle consumers ends; `None` without a keep-alive or while one is
    /// busy.
    leaves: Option<Instant>,
}

impl<T: Waiting> Queue<T> {
    /// Creates a queue of at most `most` entries for that many replicas.
    pub fn new(most: usize, replicas: usize) -> Queue<T> {
        let lines = ClientQueues {
            lines: VecDeque::new(),
            closed: false,
            replicas: (0..replicas).map(|_| ReplicaState::default()).collect(),
            turns: None,
            stay: KeepAlive::default(),
            idle: Instant::now(),
            leaves: None,
        };
        Queue {
            lines: Mutex::new(lines),
            changed: Condvar::new(),
            most,
        }
    }
    fn lock(&self) -> MutexGuard<'_, ClientQueues<T>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Queues an entry.
    ///
    /// # Errors
    /// When the queue is full or closed.
    pub fn push(&self, entry: T) -> Result<(), QueueError> {
        let mut lines = self.lock();
        if lines.closed {
            return Err(QueueError::Closed);
        }
        if lines.len() >= self.most {
            lines.forget_abandoned();
        }
        let waiting = lines.len();
        if waiting >= self.most {
            return Err(QueueError::Full(waiting));
        }
        let client = entry.client();
        match lines.lines.iter_mut().find(|(owner, _)| *owner == client) {
            Some((_, line)) => line.push_back(entry),
            None => lines.lines.push_back((client, VecDeque::from([entry]))),
        }
        lines.report_positions();
        self.changed.notify_all();
        Ok(())
    }
    /// Queues an entry again, before others of its client and even if the queue is full; drops it
    /// if the queue is closed.
    pub fn requeue(&self, entry: T) {
        let mut lines = self.lock();
        if lines.closed {
            return;
        }
        let client = entry.client();
        match lines.lines.iter_mut().find(|(owner, _)| *owner == client) {
            Some((_, line)) => line.push_front(entry),
            None => lines.lines.push_back((client, VecDeque::from([entry]))),
        }
        self.changed.notify_all();
    }
    /// Waits for the next entry of a connected client that `replica` is to take. `None` once the
    /// queue is closed, the replica or all of them are evicted, or the keep-alive has ended.
    pub fn next(&self, replica: usize) -> Option<T> {
        let mut lines = self.lock();
        lines.replicas[replica].is_busy = false;
        if lines.is_idle() {
            lines.idle = Instant::now();
        }
        // The keep-alive of the others begins with the last one's.
        self.changed.notify_all();
        loop {
            if lines.has_ended(replica) {
                return None;
            }
            if let Some(entry) = self.take(&mut lines, replica) {
                return Some(entry);
            }
            let waits = !lines.lines.is_empty();
            let left = match lines.is_idle() && !waits {
                true => lines.stay.remaining(lines.idle.elapsed()),
                false => None,
            };
            // The remaining entries before an eviction were abandoned, or the keep-alive is over.
            if lines.turns.is_some() && !waits || left == Some(Duration::ZERO) {
                (lines.turns, lines.leaves) = (Some(0), None);
                self.changed.notify_all();
                return None;
            }
            lines.leaves = left.and_then(|left| Instant::now().checked_add(left));
            // A time beyond the range of `Instant` does not limit.
            lines = match left.filter(|_| lines.leaves.is_some()) {
                Some(left) => {
                    self.changed
                        .wait_timeout(lines, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => self
                    .changed
                    .wait(lines)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
    /// Takes the next entry without waiting, for a replica that is busy. `None` also if another
    /// replica is to take it, and once the replica is evicted.
    pub fn try_next(&self, replica: usize) -> Option<T> {
        let mut lines = self.lock();
        match lines.has_ended(replica) {
            true => None,
            false => self.take(&mut lines, replica),
        }
    }
    fn take(&self, lines: &mut ClientQueues<T>, replica: usize) -> Option<T> {
        let entry = lines.take(replica)?;
        if lines.turns == Some(0) {
            self.changed.notify_all();
        }
        Some(entry)
    }
    /// Sets how long the consumers stay without entries.
    pub fn set_keep_alive(&self, stay: KeepAlive) {
        self.lock().stay = stay;
    }
    /// Returns when the consumers' keep-alive ends, if that is known.
    pub fn leaves(&self) -> Option<Instant> {
        self.lock().leaves
    }
    /// Evicts the consumers once the entries queued now have been taken. Later entries wait for
    /// other consumers.
    pub fn leave(&self) {
        let mut lines = self.lock();
        lines.forget_abandoned();
        lines.turns = Some(lines.len());
        self.changed.notify_all();
    }
    /// Ends an eviction: new consumers are about to start, with the default keep-alive.
    pub fn stay(&self) {
        let mut lines = self.lock();
        (lines.turns, lines.stay) = (None, KeepAlive::default());
        lines.idle = Instant::now();
    }
    /// Begins to hand out entries to a replica, with room for that many sequences. Returns false
    /// if the consumers are evicted.
    pub fn join(&self, replica: usize, room: usize) -> bool {
        let mut lines = self.lock();
        let goes_on = !lines.closed && lines.turns.is_none();
        lines.replicas[replica] = ReplicaState {
            serves: goes_on,
            room,
            ..ReplicaState::default()
        };
        goes_on
    }
    /// Stops handing out entries to a replica; the others go on.
    pub fn retire(&self, replica: usize) {
        self.lock().replicas[replica] = ReplicaState::default();
        self.changed.notify_all();
    }
    /// Updates the state of a replica, by which entries are handed out.
    pub fn report(&self, replica: usize, update: impl FnOnce(&mut ReplicaState)) {
        let mut lines = self.lock();
        update(&mut lines.replicas[replica]);
        if !lines.lines.is_empty() {
            self.changed.notify_all();
        }
    }
    /// Returns whether an entry is being processed or queued.
    pub fn is_busy(&self) -> bool {
        let mut lines = self.lock();
        lines.forget_abandoned();
        !lines.is_idle() || lines.len() > 0
    }
    /// Calls `tell` with every queued entry.
    pub fn for_each(&self, tell: impl Fn(&T)) {
        self.lock()
            .lines
            .iter()
            .flat_map(|(_, line)| line)
            .for_each(tell);
    }
    /// Removes every queued entry and passes it to `tell`.
    pub fn dismiss(&self, mut tell: impl FnMut(T)) {
        let mut lines = self.lock();
        while let Some(entry) = lines.pop() {
            tell(entry);
        }
    }
    /// Returns the number of queued entries.
    pub fn len(&self) -> usize {
        let mut lines = self.lock();
        lines.forget_abandoned();
        lines.len()
    }
    /// Closes the queue and drops the queued entries.
    pub fn close(&self) {
        let mut lines = self.lock();
        lines.closed = true;
        lines.lines.clear();
        self.changed.notify_all();
    }
    /// Returns whether the queue is closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

impl<T: Waiting> ClientQueues<T> {
    /// Takes the next entry of a connected client, if `replica` is the one to take it.
    fn take(&mut self, replica: usize) -> Option<T> {
        loop {
            let first = self.lines.front()?.1.front()?;
            if first.is_abandoned() {
                self.pop();
                continue;
            }
            let demand = first.demand();
            if choose(&demand, &self.replicas) != Some(replica) {
                return None;
            }
            self.replicas[replica].take(&demand);
            let entry = self.pop();
            self.leaves = None;
            self.turns = self.turns.map(|turns| turns - 1);
            self.report_positions();
            return entry;
        }
    }
    /// Returns whether a replica gets no more entries.
    fn has_ended(&self, replica: usize) -> bool {
        let retired = self.replicas.len() > 1 && !self.replicas[replica].serves;
        self.closed || self.turns == Some(0) || retired
    }
    /// Returns whether no replica is busy.
    fn is_idle(&self) -> bool {
        !self.replicas.iter().any(|replica| replica.is_busy)
    }
    fn len(&self) -> usize {
        self.lines.iter().map(|(_, line)| line.len()).sum()
    }
    fn forget_abandoned(&mut self) {
        self.lines
            .iter_mut()
            .for_each(|(_, line)| line.retain(|entry| !entry.is_abandoned()));
        self.lines.retain(|(_, line)| !line.is_empty());
    }
    /// Reports to each entry how many are before it: each round has the next entry of every client.
    fn report_positions(&self) {
        let longest = self
            .lines
            .iter()
            .map(|(_, line)| line.len())
            .max()
            .unwrap_or(0);
        let rounds = (0..longest).flat_map(|round| {
            self.lines
                .iter()
                .filter_map(move |(_, line)| line.get(round))
        });
        for (others, entry) in rounds.enumerate() {
            entry.report_position(others);
        }
    }
    fn pop(&mut self) -> Option<T> {
        let (client, mut line) = self.lines.pop_front()?;
        let entry = line.pop_front();
        if !line.is_empty() {
            self.lines.push_back((client, line));
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    #[derive(Debug, PartialEq)]
    struct Entry(u8, u32, bool);

    impl Waiting for Entry {
        fn client(&self) -> IpAddr {
            Ipv4Addr::new(127, 0, 0, self.0).into()
        }
        fn is_abandoned(&self) -> bool {
            self.2
        }
        fn report_position(&self, others: usize) {
            PLACES.with_borrow_mut(|places| places.push((self.1, others)));
        }
    }

    thread_local! {
        /// Positions that entries received.
        static PLACES: RefCell<Vec<(u32, usize)>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn who_waits_knows_behind_how_many() {
        let queue = Queue::new(10, 1);
        let told = || PLACES.take();
        queue.push(Entry(1, 0, false)).unwrap();
        queue.push(Entry(1, 1, false)).unwrap();
        assert_eq!(told(), [(0, 0), (0, 0), (1, 1)]);
        queue.push(Entry(2, 2, false)).unwrap();
        assert_eq!(told(), [(0, 0), (2, 1), (1, 2)], "clients take turns");
        assert_eq!(queue.next(0), Some(Entry(1, 0, false)));
        assert_eq!(told(), [(2, 0), (1, 1)]);
        // A requeued entry comes before the others of its client.
        queue.requeue(Entry(1, 0, false));
        let order: Vec<u32> = (0..3).map(|_| queue.next(0).unwrap().1).collect();
        assert_eq!(order, [2, 0, 1]);
    }

    #[test]
    fn clients_take_turns() {
        let queue = Queue::new(10, 1);
        for entry in [
            Entry(1, 0, false),
            Entry(1, 1, false),
            Entry(1, 2, false),
            Entry(2, 3, false),
            Entry(3, 4, false),
        ] {
            queue.push(entry).unwrap();
        }
        let order: Vec<u32> = (0..5).map(|_| queue.next(0).unwrap().1).collect();
        assert_eq!(order, [0, 3, 4, 1, 2]);
    }

    #[test]
    fn who_left_takes_no_place() {
        let queue = Queue::new(2, 1);
        queue.push(Entry(1, 0, true)).unwrap();
        queue.push(Entry(1, 1, false)).unwrap();
        queue.push(Entry(2, 2, false)).unwrap();
        assert_eq!(queue.push(Entry(3, 3, false)), Err(QueueError::Full(2)));
        assert_eq!(queue.len(), 2);
        assert_eq!((queue.next(0).unwrap().1, queue.next(0).unwrap().1), (1, 2));
    }

    #[test]
    fn who_takes_leaves_when_those_before_had_their_turn() {
        let queue = Queue::new(10, 1);
        assert!(!queue.is_busy());
        for n in 0..3 {
            queue.push(Entry(n as u8, n, false)).unwrap();
        }
        assert_eq!((queue.is_busy(), queue.next(0).unwrap().1), (true, 0));
        queue.leave();
        queue.push(Entry(1, 3, false)).unwrap();
        assert_eq!([queue.next(0).unwrap().1, queue.next(0).unwrap().1], [1, 2]);
        assert_eq!(
            queue.next(0),
            None,
            "the one that came later waits for another"
        );
        assert!(queue.is_busy());
        queue.stay();
        assert_eq!(queue.next(0).unwrap().1, 3);
        queue.push(Entry(1, 4, true)).unwrap();
        queue.push(Entry(1, 5, false)).unwrap();
        queue.leave();
        assert_eq!(
            (queue.next(0).unwrap().1, queue.next(0)),
            (5, None),
            "who has gone is nobody's turn"
        );
        queue.stay();
        queue.push(Entry(1, 6, false)).unwrap();
        let mut dismissed = Vec::new();
        queue.dismiss(|entry| dismissed.push(entry.1));
        assert_eq!((dismissed, queue.is_busy()), (vec![6], false));
    }

    #[test]
    fn who_takes_leaves_when_nobody_has_come_for_as_long_as_it_stays() {
        let queue: Arc<Queue<Entry>> = Arc::new(Queue::new(1, 1));
        let time = Duration::from_millis(30);
        let begun = Instant::now();
        queue.set_keep_alive(KeepAlive::For(time));
        assert_eq!((queue.next(0), queue.leaves()), (None, None));
        assert!(begun.elapsed() >= time);
        // A later entry waits for another consumer.
        queue.push(Entry(1, 0, false)).unwrap();
        assert_eq!(queue.next(0), None);
        queue.stay();
        // A queued entry is taken even if the keep-alive has ended.
        queue.set_keep_alive(KeepAlive::For(Duration::ZERO));
        assert_eq!(queue.next(0).unwrap().1, 0);
        assert_eq!((queue.leaves(), queue.next(0)), (None, None));
        queue.stay();
        queue.set_keep_alive(KeepAlive::For(Duration::from_secs(3600)));
        // An entry that arrives in time resets the keep-alive.
        let worker = {
            let queue = queue.clone();
            std::thread::spawn(move || queue.next(0))
        };
        while queue
            .leaves()
            .is_none_or(|at| at < begun + Duration::from_secs(3600))
        {
            std::thread::yield_now();
        }
        queue.push(Entry(1, 1, false)).unwrap();
        assert_eq!(worker.join().unwrap().map(|entry| entry.1), Some(1));
    }

    #[test]
    fn replicas_take_what_is_theirs() {
        let queue: Arc<Queue<Entry>> = Arc::new(Queue::new(4, 2));
        queue.push(Entry(1, 0, false)).unwrap();
        assert_eq!(queue.try_next(0), None, "it has not joined");
        assert!(queue.join(1, 2) && queue.join(0, 2));
        queue.report(0, |replica| replica.pending = 10);
        assert_eq!(queue.try_next(0), None, "the other one has less to do");
        assert_eq!(queue.try_next(1).unwrap().1, 0);
        // What the first does not take, it takes once the other has left.
        queue.push(Entry(1, 1, false)).unwrap();
        let worker = {
            let queue = queue.clone();
            std::thread::spawn(move || queue.next(0))
        };
        queue.retire(1);
        assert_eq!(worker.join().unwrap().map(|entry| entry.1), Some(1));
        assert_eq!(queue.next(1), None);
        // The keep-alive begins when all are idle.
        assert!(queue.join(1, 2));
        queue.set_keep_alive(KeepAlive::For(Duration::from_millis(1)));
        let worker = {
            let queue = queue.clone();
            std::thread::spawn(move || queue.next(1))
        };
        std::thread::sleep(Duration::from_millis(20));
        assert!(!worker.is_finished());
        assert_eq!((queue.next(0), worker.join().unwrap()), (None, None));
        assert!(!queue.join(1, 2), "all of them leave together");
    }

    #[test]
    fn closing_wakes_who_waits_for_work() {
        let queue: Arc<Queue<Entry>> = Arc::new(Queue::new(1, 1));
        let worker = {
            let queue = queue.clone();
            std::thread::spawn(move || queue.next(0))
        };
        queue.close();
        assert_eq!(worker.join().unwrap(), None);
        assert_eq!(queue.push(Entry(1, 0, false)), Err(QueueError::Closed));
    }
}
