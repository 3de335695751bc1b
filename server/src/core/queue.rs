//! Who is next: a line for each client, and the lines take turns.

use crate::core::models::policy::KeepAlive;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Something that waits for its turn.
pub trait Waiting {
    /// Whose it is.
    fn client(&self) -> IpAddr;
    /// Has whoever asked gone away?
    fn is_abandoned(&self) -> bool;
    /// Is told behind how many others it waits, when it begins to and whenever that changes.
    fn report_position(&self, others: usize);
}

/// Why something may not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueError {
    /// So many wait already.
    Full(usize),
    /// Nobody will be served any more.
    Closed,
}

/// A bounded queue. Within one client's line the first comes first; a client with many requests does not keep another waiting for
/// more than one of them.
pub struct Queue<T> {
    lines: Mutex<ClientQueues<T>>,
    changed: Condvar,
    most: usize,
}

struct ClientQueues<T> {
    /// None is empty; the first is next.
    lines: VecDeque<(IpAddr, VecDeque<T>)>,
    closed: bool,
    /// Was one handed out, and the next one not asked for yet?
    busy: bool,
    /// How many more are handed out before whoever takes them is told to leave; none for any number.
    turns: Option<usize>,
    /// When whoever takes them leaves unless somebody asks before; none where it waits for as long as that takes, or is answering.
    leaves: Option<Instant>,
}

impl<T: Waiting> Queue<T> {
    /// One in which at most so many wait.
    pub fn new(most: usize) -> Queue<T> {
        let lines = ClientQueues { lines: VecDeque::new(), closed: false, busy: false, turns: None, leaves: None };
        Queue { lines: Mutex::new(lines), changed: Condvar::new(), most }
    }
    fn lock(&self) -> MutexGuard<'_, ClientQueues<T>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Waits in line.
    ///
    /// # Errors
    /// When it may not.
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
        self.changed.notify_one();
        Ok(())
    }
    /// Waits for another turn, before what else its client wants, whether or not there is room; lets go of it once the queue is closed.
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
        self.changed.notify_one();
    }
    /// Waits for the next one whose asker is still there; none once the queue is closed, whoever takes from it was told to leave, or nobody has come for
    /// as long as it stays.
    pub fn next(&self, stay: KeepAlive) -> Option<T> {
        let mut lines = self.lock();
        lines.busy = false;
        let idle = Instant::now();
        loop {
            if lines.closed || lines.turns == Some(0) {
                return None;
            }
            if let Some(entry) = lines.take() {
                return Some(entry);
            }
            // Who was still to be answered has gone.
            if lines.turns.take().is_some() {
                lines.turns = Some(0);
                continue;
            }
            let left = stay.remaining(idle.elapsed());
            if left == Some(Duration::ZERO) {
                lines.leaves = None;
                return None;
            }
            lines.leaves = left.and_then(|left| Instant::now().checked_add(left));
            // More than a timer can hold is no end.
            lines = match left.filter(|_| lines.leaves.is_some()) {
                Some(left) => self.changed.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(lines).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
    /// The next one that waits now, for whoever has others to answer meanwhile; none also once it was told to leave.
    pub fn try_next(&self) -> Option<T> {
        let mut lines = self.lock();
        if lines.closed || lines.turns == Some(0) {
            return None;
        }
        lines.take()
    }
    /// When whoever takes from it leaves unless somebody asks before; none where that is not known.
    pub fn leaves(&self) -> Option<Instant> {
        self.lock().leaves
    }
    /// Tells whoever takes from it to leave when those that wait now have had their turn. Who comes later waits for somebody else.
    pub fn leave(&self) {
        let mut lines = self.lock();
        lines.forget_abandoned();
        lines.turns = Some(lines.len());
        self.changed.notify_all();
    }
    /// Somebody is about to take from it who was not told to leave.
    pub fn stay(&self) {
        self.lock().turns = None;
    }
    /// Is one being answered, or waits to be?
    pub fn is_busy(&self) -> bool {
        let mut lines = self.lock();
        lines.forget_abandoned();
        lines.busy || lines.len() > 0
    }
    /// Shows everyone who waits to `tell`.
    pub fn for_each(&self, tell: impl Fn(&T)) {
        self.lock().lines.iter().flat_map(|(_, line)| line).for_each(tell);
    }
    /// Lets go of everyone who waits, by way of `tell`.
    pub fn dismiss(&self, mut tell: impl FnMut(T)) {
        let mut lines = self.lock();
        while let Some(entry) = lines.pop() {
            tell(entry);
        }
    }
    /// How many wait.
    pub fn len(&self) -> usize {
        let mut lines = self.lock();
        lines.forget_abandoned();
        lines.len()
    }
    /// Serves nobody any more; who waits is let go.
    pub fn close(&self) {
        let mut lines = self.lock();
        lines.closed = true;
        lines.lines.clear();
        self.changed.notify_all();
    }
    /// Was it closed?
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

impl<T: Waiting> ClientQueues<T> {
    /// Hands out the next one whose asker is still there.
    fn take(&mut self) -> Option<T> {
        while let Some(entry) = self.pop() {
            if !entry.is_abandoned() {
                self.busy = true;
                self.leaves = None;
                self.turns = self.turns.map(|turns| turns - 1);
                self.report_positions();
                return Some(entry);
            }
        }
        None
    }
    fn len(&self) -> usize {
        self.lines.iter().map(|(_, line)| line.len()).sum()
    }
    fn forget_abandoned(&mut self) {
        self.lines.iter_mut().for_each(|(_, line)| line.retain(|entry| !entry.is_abandoned()));
        self.lines.retain(|(_, line)| !line.is_empty());
    }
    /// Tells every entry how many come before it: in each round the next of every line.
    fn report_positions(&self) {
        let longest = self.lines.iter().map(|(_, line)| line.len()).max().unwrap_or(0);
        let rounds = (0..longest).flat_map(|round| self.lines.iter().filter_map(move |(_, line)| line.get(round)));
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
        /// What entries were told.
        static PLACES: RefCell<Vec<(u32, usize)>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn who_waits_knows_behind_how_many() {
        let queue = Queue::new(10);
        let told = || PLACES.take();
        queue.push(Entry(1, 0, false)).unwrap();
        queue.push(Entry(1, 1, false)).unwrap();
        assert_eq!(told(), [(0, 0), (0, 0), (1, 1)]);
        queue.push(Entry(2, 2, false)).unwrap();
        assert_eq!(told(), [(0, 0), (2, 1), (1, 2)], "clients take turns");
        assert_eq!(queue.next(KeepAlive::UntilNeeded), Some(Entry(1, 0, false)));
        assert_eq!(told(), [(2, 0), (1, 1)]);
        // Whoever needs another turn has it before the rest of its own line.
        queue.requeue(Entry(1, 0, false));
        let order: Vec<u32> = (0..3).map(|_| queue.next(KeepAlive::UntilNeeded).unwrap().1).collect();
        assert_eq!(order, [2, 0, 1]);
    }

    #[test]
    fn clients_take_turns() {
        let queue = Queue::new(10);
        for entry in
            [Entry(1, 0, false), Entry(1, 1, false), Entry(1, 2, false), Entry(2, 3, false), Entry(3, 4, false)]
        {
            queue.push(entry).unwrap();
        }
        let order: Vec<u32> = (0..5).map(|_| queue.next(KeepAlive::UntilNeeded).unwrap().1).collect();
        assert_eq!(order, [0, 3, 4, 1, 2]);
    }

    #[test]
    fn who_left_takes_no_place() {
        let queue = Queue::new(2);
        queue.push(Entry(1, 0, true)).unwrap();
        queue.push(Entry(1, 1, false)).unwrap();
        queue.push(Entry(2, 2, false)).unwrap();
        assert_eq!(queue.push(Entry(3, 3, false)), Err(QueueError::Full(2)));
        assert_eq!(queue.len(), 2);
        assert_eq!((queue.next(KeepAlive::UntilNeeded).unwrap().1, queue.next(KeepAlive::UntilNeeded).unwrap().1), (1, 2));
    }

    #[test]
    fn who_takes_leaves_when_those_before_had_their_turn() {
        let queue = Queue::new(10);
        assert!(!queue.is_busy());
        for n in 0..3 {
            queue.push(Entry(n as u8, n, false)).unwrap();
        }
        assert_eq!((queue.is_busy(), queue.next(KeepAlive::UntilNeeded).unwrap().1), (true, 0));
        queue.leave();
        queue.push(Entry(1, 3, false)).unwrap();
        assert_eq!([queue.next(KeepAlive::UntilNeeded).unwrap().1, queue.next(KeepAlive::UntilNeeded).unwrap().1], [1, 2]);
        assert_eq!(queue.next(KeepAlive::UntilNeeded), None, "the one that came later waits for another");
        assert!(queue.is_busy());
        queue.stay();
        assert_eq!(queue.next(KeepAlive::UntilNeeded).unwrap().1, 3);
        queue.push(Entry(1, 4, true)).unwrap();
        queue.push(Entry(1, 5, false)).unwrap();
        queue.leave();
        assert_eq!(
            (queue.next(KeepAlive::UntilNeeded).unwrap().1, queue.next(KeepAlive::UntilNeeded)),
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
        let queue: Arc<Queue<Entry>> = Arc::new(Queue::new(1));
        let time = Duration::from_millis(30);
        let begun = Instant::now();
        assert_eq!((queue.next(KeepAlive::For(time)), queue.leaves()), (None, None));
        assert!(begun.elapsed() >= time);
        // Who waits is answered first, whatever time there is.
        queue.push(Entry(1, 0, false)).unwrap();
        assert_eq!(queue.next(KeepAlive::For(Duration::ZERO)).unwrap().1, 0);
        assert_eq!((queue.leaves(), queue.next(KeepAlive::For(Duration::ZERO))), (None, None));
        // Somebody who comes in time is no reason to leave.
        let worker = {
            let queue = queue.clone();
            std::thread::spawn(move || queue.next(KeepAlive::For(Duration::from_secs(3600))))
        };
        while queue.leaves().is_none_or(|at| at < begun + Duration::from_secs(3600)) {
            std::thread::yield_now();
        }
        queue.push(Entry(1, 1, false)).unwrap();
        assert_eq!(worker.join().unwrap().map(|entry| entry.1), Some(1));
    }

    #[test]
    fn closing_wakes_who_waits_for_work() {
        let queue: Arc<Queue<Entry>> = Arc::new(Queue::new(1));
        let worker = {
            let queue = queue.clone();
            std::thread::spawn(move || queue.next(KeepAlive::UntilNeeded))
        };
        queue.close();
        assert_eq!(worker.join().unwrap(), None);
        assert_eq!(queue.push(Entry(1, 0, false)), Err(QueueError::Closed));
    }
}
