//! Copies between the host and a device, beside the steps that run on it.

use super::context::Current;
use super::handle::{Event, Stream, event, stream};
use super::memory::{PinnedMemory, alloc, pinned};
use cudarc::driver::sys::{self, CUdeviceptr};
use gristmill_runtime::lease::Lease;
use gristmill_runtime::staging::StagedWrite;
use gristmill_runtime::{Buffer, Error, Memory};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Bytes of one piece of pinned memory.
pub const PINNED_BYTES: usize = 4 << 20;
/// Pieces of pinned memory: as many as threads read a file, and some on their way.
const MAX_PINNED_BUFFERS: usize = 12;
/// Pieces that are kept when nothing has been sent for a while.
const MIN_PINNED_BUFFERS: usize = 1;
/// How long pinned memory is kept unless said: after so long without a piece sent a model is loaded. With less, a load that waits for its disk or runs
/// steps of its own would allocate it again and again.
const PINNED_KEEP_TIME: Duration = Duration::from_secs(10);
/// Bytes of variables of a usual step, at most.
const VARIABLE_BYTES: usize = 1 << 10;

/// Pinned memory, and a mark behind the copy that was last made from it.
struct Pinned {
    memory: PinnedMemory,
    copied: Event,
}

/// The pieces of pinned memory.
struct Pool {
    /// Free ones, that which was sent first in front.
    free: VecDeque<Pinned>,
    /// How many there are, and may be: fewer than [`MAX_PINNED_BUFFERS`] where the system refuses more.
    made: usize,
    most: usize,
    /// The thread of each piece that is not free.
    holders: Vec<ThreadId>,
}

/// What steps have to know of the pieces that are sent.
struct Fence {
    mark: Event,
    /// Were pieces sent that steps do not wait for yet?
    behind: bool,
    /// When a piece was sent last; none when the pool has been trimmed since.
    sent: Option<Instant>,
    /// How long after that the pool is left as it is.
    kept_for: Duration,
}

/// The stream that everything is copied in, and the pinned memory for what is large.
pub struct PinnedCopies {
    stream: Arc<Stream>,
    pool: Mutex<Pool>,
    returned: Condvar,
    fence: Mutex<Fence>,
    /// Memory of the device for variables that nobody uses now: to free it would wait for all that runs.
    spare: Mutex<Vec<Buffer>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PinnedCopies {
    /// For a device.
    pub fn new(current: &Current) -> Result<PinnedCopies, Error> {
        let pool = Pool { free: VecDeque::new(), made: 0, most: MAX_PINNED_BUFFERS, holders: Vec::new() };
        Ok(PinnedCopies {
            stream: Arc::new(stream(current)?),
            pool: Mutex::new(pool),
            returned: Condvar::new(),
            fence: Mutex::new(Fence { mark: event(current)?, behind: false, sent: None, kept_for: PINNED_KEEP_TIME }),
            spare: Mutex::default(),
        })
    }
    /// The stream.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Sets how long after the last piece was sent a step frees most of the pinned memory.
    pub fn keep_for(&self, time: Duration) {
        locked(&self.fence).kept_for = time;
    }

    /// Memory of the device for variables; anything may be in it.
    pub fn variables(&self, bytes: usize) -> Result<Buffer, Error> {
        match Some(bytes).filter(|&n| n <= VARIABLE_BYTES).and_then(|_| locked(&self.spare).pop()) {
            Some(buffer) => Ok(buffer),
            None => alloc(&self.stream, bytes.max(VARIABLE_BYTES), Memory::Weights),
        }
    }
    /// Takes such memory back when nothing that runs uses it.
    pub fn give_back(&self, variables: Buffer) {
        if variables.len() == VARIABLE_BYTES {
            locked(&self.spare).push(variables);
        }
    }

    /// Makes what is queued in `steps` from now on wait for every piece that was sent.
    pub fn before(&self, current: &Current, steps: &Stream) -> Result<(), Error> {
        let mut fence = locked(&self.fence);
        if fence.behind {
            self.stream.mark(current, &fence.mark)?;
            steps.follow(current, &fence.mark)?;
            fence.behind = false;
        }
        if fence.sent.is_some_and(|sent| sent.elapsed() >= fence.kept_for) {
            fence.sent = None;
            drop(fence);
            self.trim(MIN_PINNED_BUFFERS);
        }
        Ok(())
    }

    /// Frees pinned memory that nobody holds and no copy reads, down to so many pieces.
    fn trim(&self, kept: usize) {
        let mut pool = locked(&self.pool);
        pool.most = MAX_PINNED_BUFFERS;
        while pool.made > kept
            && let Some(pinned) = pool.free.pop_front()
        {
            if pinned.copied.wait().is_err() {
                return pool.free.push_front(pinned);
            }
            pool.made -= 1;
        }
    }

    /// A piece of memory that lies at `at`, which `lease` gives the right to: at most [`PINNED_BYTES`] bytes. None where there is no pinned memory for it, and none to be waited for.
    pub fn stage(&self, lease: Lease, at: CUdeviceptr, len: usize) -> Result<Option<Box<dyn StagedWrite + '_>>, Error> {
        let Some(pinned) = self.take()? else { return Ok(None) };
        // The copy from it that was made before must have ended.
        let piece = StagedPiece { copies: self, pinned: Some(pinned), at, len, _lease: lease };
        piece.pinned.iter().try_for_each(|p| p.copied.wait())?;
        Ok(Some(Box::new(piece)))
    }

    /// Pinned memory: new while there is little, else that which was sent longest ago, once somebody returns it. A thread that holds a piece itself
    /// does not wait, since it may be the one that all wait for.
    fn take(&self) -> Result<Option<Pinned>, Error> {
        let thread = std::thread::current().id();
        let mut pool = locked(&self.pool);
        loop {
            if pool.made < pool.most {
                match self.allocate() {
                    Ok(pinned) => {
                        pool.made += 1;
                        pool.holders.push(thread);
                        return Ok(Some(pinned));
                    }
                    Err(error) if error.is_lost() => return Err(error),
                    Err(_) if pool.made == 0 => return Ok(None),
                    // There is too little of it: those there are will do.
                    Err(_) => pool.most = pool.made,
                }
            }
            if let Some(pinned) = pool.free.pop_front() {
                pool.holders.push(thread);
                return Ok(Some(pinned));
            }
            if pool.holders.contains(&thread) {
                return Ok(None);
            }
            pool = self.returned.wait(pool).unwrap_or_else(PoisonError::into_inner);
        }
    }
    fn allocate(&self) -> Result<Pinned, Error> {
        let current = self.stream.context().enter()?;
        Ok(Pinned { memory: pinned(&self.stream, PINNED_BYTES)?, copied: event(&current)? })
    }
}

impl Drop for PinnedCopies {
    /// Pinned memory may not go while it is read.
    fn drop(&mut self) {
        let _ = self.stream.settle(); // if it fails the device is lost, and knows what may be freed
    }
}

struct StagedPiece<'a> {
    copies: &'a PinnedCopies,
    /// Until it is dropped.
    pinned: Option<Pinned>,
    at: CUdeviceptr,
    len: usize,
    _lease: Lease,
}

impl StagedWrite for StagedPiece<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        match &self.pinned {
            // SAFETY: pinned memory is initialised by the system and long enough; nobody else has it, and no copy reads it.
            Some(pinned) => unsafe { std::slice::from_raw_parts_mut(pinned.memory.raw().cast(), self.len) },
            None => &mut [],
        }
    }
    fn send(self: Box<Self>) -> Result<(), Error> {
        let Some(pinned) = &self.pinned else { return Ok(()) };
        let stream = self.copies.stream();
        let current = stream.context().enter()?;
        // SAFETY: inside the buffer; the pinned bytes are left alone until the mark behind the copy is passed.
        let queued = unsafe { sys::cuMemcpyHtoDAsync_v2(self.at, pinned.memory.raw(), self.len, stream.raw()) };
        current.check("cuMemcpyHtoDAsync", queued)?;
        {
            let mut fence = locked(&self.copies.fence);
            (fence.behind, fence.sent) = (true, Some(Instant::now()));
        }
        // Without a mark nobody would know when the bytes may be used again.
        stream.mark(&current, &pinned.copied).inspect_err(|_| drop(stream.settle()))
    }
}

impl Drop for StagedPiece<'_> {
    fn drop(&mut self) {
        let mut pool = locked(&self.copies.pool);
        pool.free.extend(self.pinned.take());
        // Pieces stay with the thread that took them: they are not `Send`.
        let thread = std::thread::current().id();
        if let Some(held) = pool.holders.iter().position(|&holder| holder == thread) {
            pool.holders.swap_remove(held);
        }
        drop(pool);
        self.copies.returned.notify_one();
    }
}
