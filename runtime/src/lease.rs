//! Tracks which bytes of device memory are in use, so that copies and steps never conflict.
//!
//! The host uses memory through *leases* of ranges: several leases may read bytes, or one may write
//! bytes that no other holds. A captured step uses all ranges bound to its launches, from its start
//! until it has been waited for. The second of two conflicting uses is refused.
//!
//! A step of a model has hundreds of buffers and starts every few milliseconds. So it announces
//! itself by incrementing one counter, and checks its buffers only while the device has leases. A
//! lease is counted before it checks the steps, and a step before it checks the leases, both
//! sequentially consistent: at least one of the two sees the other.
//!
//! Steps of a device run in sequence and need no protection from one another. A step that runs
//! on its caller's thread concurrently with others ([`crate::Device::capture_alone`]) takes
//! leases like the host.

use crate::error::Error;
use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Identity of an opened device; opening the same hardware twice gives two identities.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeviceId(u64);

/// An opened device as the owner of its memory. Clones are the same owner.
#[derive(Clone)]
pub struct Owner(Arc<Books>);

struct Books {
    id: DeviceId,
    /// Number of live leases over all memory of the device.
    leases: AtomicUsize,
}

impl Owner {
    /// Creates an owner with a fresh identity.
    #[expect(clippy::new_without_default, reason = "every one is another")]
    pub fn new() -> Owner {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Owner(Arc::new(Books {
            id: DeviceId(NEXT.fetch_add(1, Ordering::Relaxed)),
            leases: AtomicUsize::new(0),
        }))
    }
    /// Identity of the device.
    pub fn id(&self) -> DeviceId {
        self.0.id
    }
}

/// Kind of access to a range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Use {
    /// Read access, which may be shared.
    Read,
    /// Exclusive access for writing.
    Write,
}

/// A range of an allocation and the access to it.
type Used = (Range<usize>, Use);

fn conflict(a: &Used, b: &Used) -> bool {
    let apart = a.0.end <= b.0.start || b.0.end <= a.0.start || a.0.is_empty() || b.0.is_empty();
    !apart && (a.1 == Use::Write || b.1 == Use::Write)
}

fn any_conflict(a: &[Used], b: &[Used]) -> Option<Range<usize>> {
    a.iter()
        .find(|a| b.iter().any(|b| conflict(a, b)))
        .map(|a| a.0.clone())
}

/// Current uses of one allocation.
pub struct Uses {
    owner: Owner,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of the next lease.
    next: u64,
    leases: Vec<(u64, Vec<Used>)>,
    /// Captured steps: in-flight count, and the ranges they use in this allocation.
    steps: Vec<(Arc<AtomicUsize>, Vec<Used>)>,
}

impl Uses {
    /// Creates the record of a new allocation of that device.
    pub fn new(owner: &Owner) -> Uses {
        Uses {
            owner: owner.clone(),
            state: Mutex::default(),
        }
    }
    /// Device that owns the memory.
    pub fn device(&self) -> DeviceId {
        self.owner.id()
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Leases all these ranges or none; returns the number of the lease.
    fn take(&self, what: &str, wanted: Vec<Used>) -> Result<u64, Error> {
        let mut state = self.state();
        let refuse = |range: Range<usize>, by: &str| {
            Err(Error::invalid(
                what,
                format!(
                    "bytes {} to {} of its memory are in use by {by}",
                    range.start, range.end
                ),
            ))
        };
        if let Some(range) = state
            .leases
            .iter()
            .find_map(|l| any_conflict(&wanted, &l.1))
        {
            return refuse(range, "another copy");
        }
        self.owner.0.leases.fetch_add(1, Ordering::SeqCst);
        let running = |running: &AtomicUsize| running.load(Ordering::SeqCst) > 0;
        if let Some(range) = state
            .steps
            .iter()
            .filter(|s| running(&s.0))
            .find_map(|s| any_conflict(&wanted, &s.1))
        {
            self.owner.0.leases.fetch_sub(1, Ordering::SeqCst);
            return refuse(range, "a step that was started and not waited for");
        }
        let number = state.next;
        state.next += 1;
        state.leases.push((number, wanted));
        Ok(number)
    }
}

/// A device's own allocation.
///
/// # Safety
/// `len` and `uses` never change. If `host` returns an address, it returns the same one every time,
/// and the `len` bytes from it are initialised and may be read and written from any thread as long
/// as this lives. Only holders of leases and in-flight steps access them.
pub unsafe trait RawBuffer: Any + Send + Sync {
    /// Length of the allocation, bytes.
    fn len(&self) -> usize;
    /// Returns whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Current uses of the allocation; also names its owner.
    fn uses(&self) -> &Uses;
    /// Address on the host; `None` for memory that the host cannot address.
    fn host(&self) -> Option<*mut u8> {
        None
    }
}

/// A right to use ranges of an allocation, released on drop.
pub struct Lease {
    memory: Arc<dyn RawBuffer>,
    number: u64,
}

impl Lease {
    /// Leases one range. `what` names the operation in conflict errors.
    pub(crate) fn take(
        what: &str,
        memory: &Arc<dyn RawBuffer>,
        range: Range<usize>,
        how: Use,
    ) -> Result<Lease, Error> {
        Lease::all(what, memory, vec![(range, how)])
    }
    fn all(what: &str, memory: &Arc<dyn RawBuffer>, wanted: Vec<Used>) -> Result<Lease, Error> {
        let number = memory.uses().take(what, wanted)?;
        Ok(Lease {
            memory: memory.clone(),
            number,
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let uses = self.memory.uses();
        uses.state().leases.retain(|l| l.0 != self.number);
        uses.owner.0.leases.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Mutual exclusion of captured steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The device runs such steps in sequence.
    Queued,
    /// Each step runs on the thread that starts it, concurrently with others.
    Alone,
}

/// Ranges that a captured step uses, by allocation.
pub struct StepUses {
    owner: Owner,
    order: Order,
    running: Arc<AtomicUsize>,
    memories: Vec<(Arc<dyn RawBuffer>, Vec<Used>)>,
}

impl StepUses {
    /// Collects the ranges of launches that have been checked
    /// ([`Launch::uses`](crate::Launch::uses)).
    pub fn new<'a>(
        owner: &Owner,
        uses: impl IntoIterator<Item = (&'a Arc<dyn RawBuffer>, Range<usize>, Use)>,
        order: Order,
    ) -> StepUses {
        let mut memories: Vec<(Arc<dyn RawBuffer>, Vec<Used>)> = Vec::new();
        let mut known = std::collections::HashMap::new();
        for (memory, range, how) in uses {
            let place = *known
                .entry(Arc::as_ptr(memory).cast::<()>())
                .or_insert_with(|| {
                    memories.push((memory.clone(), Vec::new()));
                    memories.len() - 1
                });
            memories[place].1.push((range, how));
        }
        memories.iter_mut().for_each(|m| merge(&mut m.1));
        let running = Arc::default();
        if order == Order::Queued {
            for (memory, used) in &memories {
                memory
                    .uses()
                    .state()
                    .steps
                    .push((Arc::clone(&running), used.clone()));
            }
        }
        StepUses {
            owner: owner.clone(),
            order,
            running,
            memories,
        }
    }

    /// Marks the step as in flight until the returned guard is dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a lease conflicts; the step is then not in flight.
    pub fn begin(&self) -> Result<StepGuard, Error> {
        if self.order == Order::Alone {
            let lease = |(memory, used): &(Arc<dyn RawBuffer>, Vec<Used>)| {
                Lease::all("a step", memory, used.clone())
            };
            return Ok(StepGuard(Flight::Leased {
                _leases: self
                    .memories
                    .iter()
                    .map(lease)
                    .collect::<Result<_, Error>>()?,
            }));
        }
        self.running.fetch_add(1, Ordering::SeqCst);
        let flight = StepGuard(Flight::Counted(self.running.clone()));
        if self.owner.0.leases.load(Ordering::SeqCst) > 0 {
            for (memory, used) in &self.memories {
                let state = memory.uses().state();
                if let Some(range) = state.leases.iter().find_map(|l| any_conflict(&l.1, used)) {
                    let message = format!(
                        "bytes {} to {} of a buffer are in use by a copy",
                        range.start, range.end
                    );
                    return Err(Error::invalid("a step", message));
                }
            }
        }
        Ok(flight)
    }
}

impl Drop for StepUses {
    fn drop(&mut self) {
        for (memory, _) in &self.memories {
            memory
                .uses()
                .state()
                .steps
                .retain(|s| !Arc::ptr_eq(&s.0, &self.running));
        }
    }
}

/// A step in flight, from its start until it has been waited for.
pub struct StepGuard(Flight);

enum Flight {
    /// A queued step. The in-flight count was incremented before; dropping decrements it.
    Counted(Arc<AtomicUsize>),
    /// A step that runs on its caller's thread.
    Leased {
        /// Leases of all its memory.
        _leases: Vec<Lease>,
    },
}

impl Drop for StepGuard {
    fn drop(&mut self) {
        if let Flight::Counted(running) = &self.0 {
            running.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Merges ranges of equal access that overlap or touch.
fn merge(used: &mut Vec<Used>) {
    used.sort_by_key(|u| (u.1, u.0.start, u.0.end));
    used.dedup_by(|next, kept| {
        let joined = next.1 == kept.1 && next.0.start <= kept.0.end;
        if joined {
            kept.0.end = kept.0.end.max(next.0.end);
        }
        joined
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    struct Plain(Uses);
    // SAFETY: it has no address.
    unsafe impl RawBuffer for Plain {
        fn len(&self) -> usize {
            100
        }
        fn uses(&self) -> &Uses {
            &self.0
        }
    }

    #[test]
    fn ranges_are_merged_by_use() {
        let mut used = vec![
            (4..8, Use::Read),
            (0..4, Use::Read),
            (6..9, Use::Write),
            (20..30, Use::Read),
            (5..6, Use::Read),
        ];
        merge(&mut used);
        assert_eq!(
            used,
            [(0..8, Use::Read), (20..30, Use::Read), (6..9, Use::Write)]
        );
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let owner = Owner::new();
        let buffer = Buffer::whole(Arc::new(Plain(Uses::new(&owner))));
        let take = |offset, len, how| buffer.lease("a test", offset, len, how);
        let first = take(0, 10, Use::Read).unwrap();
        let second = take(5, 10, Use::Read).unwrap();
        assert!(take(14, 1, Use::Write).is_err() && take(15, 85, Use::Write).is_ok());
        drop(second);
        let third = take(10, 5, Use::Write).unwrap();
        assert!(
            take(14, 6, Use::Read)
                .err()
                .unwrap()
                .to_string()
                .contains("bytes 14 to 20")
        );
        assert!(
            take(12, 0, Use::Write).is_ok(),
            "no bytes conflict with nothing"
        );
        assert!(take(90, 11, Use::Read).is_err() && take(usize::MAX, 2, Use::Read).is_err());
        assert_eq!(owner.0.leases.load(Ordering::SeqCst), 2);
        drop((first, third));
        assert_eq!(owner.0.leases.load(Ordering::SeqCst), 0);
        assert!(take(0, 100, Use::Write).is_ok());
    }

    /// If a copy and a step request the same bytes concurrently, at least one is
    /// refused in every interleaving.
    #[test]
    fn a_lease_and_a_step_never_have_the_same_bytes() {
        let owner = Owner::new();
        let memory: Arc<dyn RawBuffer> = Arc::new(Plain(Uses::new(&owner)));
        let running: Arc<AtomicUsize> = Arc::default();
        let used = vec![(0..100, Use::Write)];
        memory
            .uses()
            .state()
            .steps
            .push((running.clone(), used.clone()));
        let step = StepUses {
            owner,
            order: Order::Queued,
            running,
            memories: vec![(memory.clone(), used)],
        };
        let inside = AtomicUsize::new(0);
        let together = AtomicUsize::new(0);
        let tried = AtomicUsize::new(0);
        let had = |granted: bool| {
            if granted {
                together.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            }
            let before = tried.fetch_add(1, Ordering::SeqCst) + 1;
            if granted {
                // Holds the grant until the other thread has tried, or 20 yields.
                for _ in 0..20 {
                    if tried.load(Ordering::SeqCst) != before {
                        break;
                    }
                    std::thread::yield_now();
                }
                inside.fetch_sub(1, Ordering::SeqCst);
            }
        };
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                for _ in 0..10_000 {
                    let lease = Lease::take("a test", &memory, 0..1, Use::Write);
                    had(lease.is_ok());
                    drop(lease);
                }
            });
            start.wait();
            for _ in 0..10_000 {
                let flight = step.begin();
                had(flight.is_ok());
                drop(flight);
            }
        });
        assert_eq!(together.into_inner(), 1, "both had them");
        assert_eq!(step.owner.0.leases.load(Ordering::SeqCst), 0);
        assert_eq!(step.running.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn devices_differ() {
        let (a, b) = (Owner::new(), Owner::new());
        assert!(a.id() != b.id() && a.id() == a.clone().id());
    }
}
