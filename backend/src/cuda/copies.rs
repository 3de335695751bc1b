//! Copies between the host and a device, beside the steps that run on it.

use super::driver::{Context, Event, Handle, Stream, check, event, stream};
use super::memory::alloc;
use cudarc::driver::sys::{self, CUdeviceptr};
use gristmill_runtime::lease::Lease;
use gristmill_runtime::staging::Piece;
use gristmill_runtime::{Buffer, Error, Memory};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Bytes of one piece of pinned memory.
pub const PINNED: usize = 4 << 20;
/// Pieces of pinned memory: as many as threads read a file, and some on their way.
const PIECES: usize = 12;
/// Bytes of variables of a usual step, at most.
const SPARE: usize = 1 << 10;

/// Pinned memory, and a mark behind the copy that was last made from it.
struct Pinned {
    memory: Handle<*mut c_void>,
    copied: Event,
}

/// The stream that everything is copied in, and the pinned memory for what is large.
pub struct Copies {
    stream: Stream,
    /// Free pieces, that which was sent first in front, and how many there are in all.
    pool: Mutex<(VecDeque<Pinned>, usize)>,
    returned: Condvar,
    /// A mark for steps to wait for, and whether copies were queued that they do not know of.
    fence: Mutex<(Event, bool)>,
    /// Memory of the device for variables that nobody uses now: to free it would wait for all that runs.
    spare: Mutex<Vec<Buffer>>,
}

impl Copies {
    /// For a device.
    pub fn new(context: &Arc<Context>) -> Result<Copies, Error> {
        Ok(Copies {
            stream: stream(context)?,
            pool: Mutex::default(),
            returned: Condvar::new(),
            fence: Mutex::new((event(context)?, false)),
            spare: Mutex::default(),
        })
    }
    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Memory of the device for variables; anything may be in it.
    pub fn variables(&self, bytes: usize) -> Result<Buffer, Error> {
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match Some(bytes).filter(|&n| n <= SPARE).and_then(|_| spare()) {
            Some(buffer) => Ok(buffer),
            None => alloc(self.stream.context(), &self.stream, bytes.max(SPARE), Memory::Weights),
        }
    }
    /// Takes such memory back when nothing that runs uses it.
    pub fn give_back(&self, variables: Buffer) {
        if variables.len() == SPARE {
            self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(variables);
        }
    }

    /// Makes what is queued in `steps` from now on wait for every piece that was sent.
    pub fn before(&self, steps: &Stream) -> Result<(), Error> {
        let mut fence = self.fence.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut fence.1) {
            self.stream.mark(&fence.0)?;
            steps.follow(&fence.0)?;
        }
        Ok(())
    }

    /// A piece of memory that lies at `at`, with the right to it: at most [`PINNED`] bytes.
    pub fn stage(&self, lease: Lease, at: CUdeviceptr, len: usize) -> Result<Box<dyn Piece + '_>, Error> {
        let pinned = self.take()?;
        // The copy from it that was made before must have ended.
        let piece = StagedPiece { copies: self, pinned: Some(pinned), at, len, _lease: lease };
        piece.pinned.iter().try_for_each(|p| p.copied.wait())?;
        Ok(Box::new(piece))
    }

    /// Pinned memory: new while there is little, else that which was sent longest ago.
    fn take(&self) -> Result<Pinned, Error> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if pool.1 < PIECES {
                let context = self.stream.context();
                // SAFETY: writes the address of so many bytes.
                let make = |out| unsafe { sys::cuMemHostAlloc(out, PINNED, 0) };
                let memory = Handle::new(context, "cuMemHostAlloc", sys::cuMemFreeHost, make)?;
                let pinned = Pinned { memory, copied: event(context)? };
                pool.1 += 1;
                return Ok(pinned);
            }
            match pool.0.pop_front() {
                Some(pinned) => return Ok(pinned),
                None => pool = self.returned.wait(pool).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

struct StagedPiece<'a> {
    copies: &'a Copies,
    /// Until it is dropped.
    pinned: Option<Pinned>,
    at: CUdeviceptr,
    len: usize,
    _lease: Lease,
}

impl Piece for StagedPiece<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        match &self.pinned {
            // SAFETY: pinned memory is initialised by the system and long enough; nobody else has it, and no copy reads it.
            Some(pinned) => unsafe { std::slice::from_raw_parts_mut(pinned.memory.raw().cast(), self.len) },
            None => &mut [],
        }
    }
    fn send(self: Box<Self>) -> Result<(), Error> {
        let copies = self.copies;
        let Some(pinned) = &self.pinned else { return Ok(()) };
        copies.stream.context().enter()?;
        // SAFETY: inside the buffer; the pinned bytes are left alone until the mark behind the copy is passed.
        let queued = unsafe { sys::cuMemcpyHtoDAsync_v2(self.at, pinned.memory.raw(), self.len, copies.stream.raw()) };
        check("cuMemcpyHtoDAsync", queued)?;
        copies.stream.mark(&pinned.copied)?;
        copies.fence.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        Ok(())
    }
}

impl Drop for StagedPiece<'_> {
    fn drop(&mut self) {
        let mut pool = self.copies.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.0.extend(self.pinned.take());
        drop(pool);
        self.copies.returned.notify_one();
    }
}
