//! Copies between host and device that overlap with the steps.

use super::context::Current;
use super::handle::{Event, Stream, event, stream};
use super::memory::{PinnedBytes, PinnedMemory, alloc, pinned};
use cudarc::driver::sys::{self, CUdeviceptr};
use gristmill_runtime::lease::Lease;
use gristmill_runtime::staging::StagedWrite;
use gristmill_runtime::{Buffer, Error, Memory};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Bytes of one pinned staging buffer.
pub const PINNED_BYTES: usize = 4 << 20;
/// Maximum number of staging buffers: the threads that read a file, and some for copies in flight.
const MAX_PINNED_BUFFERS: usize = 12;
/// Staging buffers to keep after a period without copies.
const MIN_PINNED_BUFFERS: usize = 1;
/// Default period without a staged copy after which pinned memory is freed, as the model is loaded.
///
/// With less, a load that waits for its disk or runs steps would allocate it repeatedly.
const PINNED_KEEP_TIME: Duration = Duration::from_secs(10);
/// Maximum bytes of variables of a usual step.
const VARIABLE_BYTES: usize = 1 << 10;

/// A staging buffer and the event of the last copy from it.
struct Pinned {
    memory: PinnedMemory,
    copied: Event,
}

/// The pool of staging buffers.
struct Pool {
    /// Free buffers, the one used longest ago first.
    free: VecDeque<Pinned>,
    /// Number of buffers, then their maximum, reduced where the system refuses more.
    made: usize,
    most: usize,
    /// Threads that hold a buffer, one entry for each.
    holders: Vec<ThreadId>,
}

/// State that orders steps after staged copies.
struct Fence {
    mark: Event,
    /// Whether copies were queued that steps do not wait for yet.
    behind: bool,
    /// Time of the last staged copy; None after the pool was trimmed.
    sent: Option<Instant>,
    /// Period after `sent` before the pool is trimmed.
    kept_for: Duration,
}

/// The copy stream and the pool of pinned staging buffers.
pub struct PinnedCopies {
    stream: Arc<Stream>,
    pool: Mutex<Pool>,
    returned: Condvar,
    fence: Mutex<Fence>,
    /// Unused device buffers for variables; freeing one would wait for all running work.
    spare: Mutex<Vec<Buffer>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PinnedCopies {
    /// Creates the stream and an empty pool.
    pub fn new(current: &Current) -> Result<PinnedCopies, Error> {
        let pool = Pool {
            free: VecDeque::new(),
            made: 0,
            most: MAX_PINNED_BUFFERS,
            holders: Vec::new(),
        };
        Ok(PinnedCopies {
            stream: Arc::new(stream(current)?),
            pool: Mutex::new(pool),
            returned: Condvar::new(),
            fence: Mutex::new(Fence {
                mark: event(current)?,
                behind: false,
                sent: None,
                kept_for: PINNED_KEEP_TIME,
            }),
            spare: Mutex::default(),
        })
    }
    /// Returns the copy stream.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Sets the period without staged copies after which a step frees most pinned memory.
    pub fn keep_for(&self, time: Duration) {
        locked(&self.fence).kept_for = time;
    }

    /// Returns device memory for variables, with undefined contents.
    pub fn variables(&self, bytes: usize) -> Result<Buffer, Error> {
        match Some(bytes)
            .filter(|&n| n <= VARIABLE_BYTES)
            .and_then(|_| locked(&self.spare).pop())
        {
            Some(buffer) => Ok(buffer),
            None => alloc(&self.stream, bytes.max(VARIABLE_BYTES), Memory::Weights),
        }
    }
    /// Takes back such memory when no running work uses it.
    pub fn recycle(&self, variables: Buffer) {
        if variables.len() == VARIABLE_BYTES {
            locked(&self.spare).push(variables);
        }
    }

    /// Makes work queued in `steps` from now on wait for all staged copies.
    pub fn wait_before(&self, current: &Current, steps: &Stream) -> Result<(), Error> {
        let mut fence = locked(&self.fence);
        if fence.behind {
            self.stream.mark(current, &fence.mark)?;
            steps.wait_for(current, &fence.mark)?;
            fence.behind = false;
        }
        if fence
            .sent
            .is_some_and(|sent| sent.elapsed() >= fence.kept_for)
        {
            fence.sent = None;
            drop(fence);
            self.trim(MIN_PINNED_BUFFERS);
        }
        Ok(())
    }

    /// Queues a copy of pinned bytes to `at`; work that steps queue from now on waits for it.
    pub fn restore(
        &self,
        kept: &PinnedBytes,
        range: Range<usize>,
        at: CUdeviceptr,
    ) -> Result<(), Error> {
        let current = self.stream.context().enter()?;
        // SAFETY: the range lies in the bytes, which outlive the copy.
        let queued = unsafe {
            let from = kept.address().cast_const().byte_add(range.start);
            sys::cuMemcpyHtoDAsync_v2(at, from, range.len(), self.stream.raw())
        };
        current.check("cuMemcpyHtoDAsync", queued)?;
        locked(&self.fence).behind = true;
        Ok(())
    }

    /// Frees staging buffers that are neither held nor read by a copy, down to `kept`.
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

    /// Returns a staging buffer for `len` bytes at address `at`, at most [`PINNED_BYTES`].
    ///
    /// `lease` is the right to write there. None if there is no pinned memory and waiting
    /// for it could deadlock.
    pub fn stage(
        &self,
        lease: Lease,
        at: CUdeviceptr,
        len: usize,
    ) -> Result<Option<Box<dyn StagedWrite + '_>>, Error> {
        let Some(pinned) = self.take()? else {
            return Ok(None);
        };
        // The previous copy from the buffer must have ended.
        let piece = StagedPiece {
            copies: self,
            pinned: Some(pinned),
            at,
            len,
            _lease: lease,
        };
        piece.pinned.iter().try_for_each(|p| p.copied.wait())?;
        Ok(Some(Box::new(piece)))
    }

    /// Takes a staging buffer: a new one, else the free one used longest ago, else waits for one.
    ///
    /// A thread that already holds a buffer does not wait, since all others may wait for it.
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
                    // The system has too little; the existing buffers suffice.
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
            pool = self
                .returned
                .wait(pool)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
    fn allocate(&self) -> Result<Pinned, Error> {
        let current = self.stream.context().enter()?;
        Ok(Pinned {
            memory: pinned(&self.stream, PINNED_BYTES)?,
            copied: event(&current)?,
        })
    }
}

impl Drop for PinnedCopies {
    /// Pinned memory must not be freed while a copy reads it.
    fn drop(&mut self) {
        // on failure the device is lost, and `is_stuck` decides about freeing
        let _ = self.stream.settle();
    }
}

struct StagedPiece<'a> {
    copies: &'a PinnedCopies,
    /// None once it is dropped.
    pinned: Option<Pinned>,
    at: CUdeviceptr,
    len: usize,
    _lease: Lease,
}

impl StagedWrite for StagedPiece<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        match &self.pinned {
            // SAFETY: pinned memory is initialised by the system and long enough; this is its only
            // user, and no copy reads it.
            Some(pinned) => unsafe {
                std::slice::from_raw_parts_mut(pinned.memory.raw().cast(), self.len)
            },
            None => &mut [],
        }
    }
    fn send(self: Box<Self>) -> Result<(), Error> {
        let Some(pinned) = &self.pinned else {
            return Ok(());
        };
        let stream = self.copies.stream();
        let current = stream.context().enter()?;
        // SAFETY: inside the buffer; the pinned bytes are not reused until the
        // event after the copy.
        let queued = unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.at, pinned.memory.raw(), self.len, stream.raw())
        };
        current.check("cuMemcpyHtoDAsync", queued)?;
        {
            let mut fence = locked(&self.copies.fence);
            (fence.behind, fence.sent) = (true, Some(Instant::now()));
        }
        // Without the event it would be unknown when the bytes may be reused.
        stream
            .mark(&current, &pinned.copied)
            .inspect_err(|_| drop(stream.settle()))
    }
}

impl Drop for StagedPiece<'_> {
    fn drop(&mut self) {
        let mut pool = locked(&self.copies.pool);
        pool.free.extend(self.pinned.take());
        // Pieces are not `Send`, so they are dropped by the thread that took them.
        let thread = std::thread::current().id();
        if let Some(held) = pool.holders.iter().position(|&holder| holder == thread) {
            pool.holders.swap_remove(held);
        }
        drop(pool);
        self.copies.returned.notify_one();
    }
}
