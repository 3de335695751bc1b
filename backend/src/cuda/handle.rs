//! Driver handles that are destroyed on drop: streams, events and others.

use super::context::{CudaContext, Current};
use cudarc::driver::sys::{self, CUresult};
use gristmill_runtime::Error;
use std::sync::Arc;

/// A driver handle, destroyed on drop.
pub struct Handle<T: Copy> {
    raw: T,
    destroy: unsafe fn(T) -> CUresult,
    context: Arc<CudaContext>,
}

// SAFETY: handles belong to a context, not to a thread (`Handle::new`). Those that exclude
// concurrent use (graphs) are used through `&mut`.
unsafe impl<T: Copy> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Handle<T> {}

impl<T: Copy> Handle<T> {
    /// Creates a handle with `make`; `destroy` is called on drop.
    ///
    /// # Safety
    /// When `make` returns success, it has written a handle that belongs to the current
    /// context and to no thread, that is not destroyed elsewhere, and that `destroy` accepts
    /// once with that context current.
    pub unsafe fn new(
        current: &Current,
        what: &str,
        destroy: unsafe fn(T) -> CUresult,
        make: impl FnOnce(*mut T) -> CUresult,
    ) -> Result<Handle<T>, Error> {
        // SAFETY: written, as the caller guarantees.
        Ok(Handle {
            raw: unsafe { current.get(what, make) }?,
            destroy,
            context: current.context().clone(),
        })
    }
    /// Returns the raw handle, valid while this lives.
    pub fn raw(&self) -> T {
        self.raw
    }
    /// Returns the context that owns the handle.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

impl<T: Copy> Drop for Handle<T> {
    /// Leaks the handle if work may run on the device forever.
    fn drop(&mut self) {
        if self.context.is_stuck() {
            return;
        }
        if let Ok(_current) = self.context.enter_to_destroy() {
            // SAFETY: created in this context and no longer used. An error cannot be handled.
            unsafe { (self.destroy)(self.raw) };
        }
    }
}

/// A queue of GPU work.
pub type Stream = Handle<sys::CUstream>;
/// A marker in a stream.
pub type Event = Handle<sys::CUevent>;

/// Creates a stream that does not synchronise with the default one.
pub fn stream(current: &Current) -> Result<Stream, Error> {
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: writes a new stream.
    unsafe {
        Handle::new(current, "cuStreamCreate", sys::cuStreamDestroy_v2, |out| {
            sys::cuStreamCreate(out, flags)
        })
    }
}

/// Creates an event without timing.
pub fn event(current: &Current) -> Result<Event, Error> {
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
    // SAFETY: writes a new event.
    unsafe {
        Handle::new(current, "cuEventCreate", sys::cuEventDestroy_v2, |out| {
            sys::cuEventCreate(out, flags)
        })
    }
}

impl Stream {
    /// Waits for all queued work, up to the timeout. Errors of kernels are reported here.
    pub fn wait(&self) -> Result<(), Error> {
        let current = self.context.enter()?;
        // SAFETY: a live stream.
        current.wait(
            || unsafe { sys::cuStreamSynchronize(self.raw) },
            || unsafe { sys::cuStreamQuery(self.raw) },
        )
    }
    /// Waits for all queued copies without a timeout, as they use borrowed memory.
    ///
    /// Copies have their own stream, so no endless kernel blocks them; for a lost device the
    /// driver returns an error.
    pub fn wait_for_copies(&self, current: &Current) -> Result<(), Error> {
        // SAFETY: a live stream.
        let wait = || current.check("a copy", unsafe { sys::cuStreamSynchronize(self.raw) });
        wait().or_else(|first| {
            self.settled(wait(), &first)?;
            Err(first)
        })
    }
    /// Waits until no queued work runs, whatever fails, before its memory is freed or reused.
    ///
    /// If that cannot be established, the device is lost and its memory is never freed.
    pub fn settle(&self) -> Result<(), Error> {
        self.wait()
            .or_else(|first| self.settled(self.wait(), &first))
    }
    /// Judges the second attempt to wait: if both failed, the device may not be idle.
    fn settled(&self, second: Result<(), Error>, first: &Error) -> Result<(), Error> {
        second.map_err(|error| {
            if error.is_lost() {
                error
            } else {
                self.context.lose_track(first)
            }
        })
    }
    /// Records an event at the current end of the stream.
    pub fn mark(&self, current: &Current, event: &Event) -> Result<(), Error> {
        // SAFETY: both are live, in the current context.
        current.check("cuEventRecord", unsafe {
            sys::cuEventRecord(event.raw, self.raw)
        })
    }
    /// Makes work queued from now on wait for the event.
    pub fn wait_for(&self, current: &Current, event: &Event) -> Result<(), Error> {
        // SAFETY: as above.
        current.check("cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(self.raw, event.raw, 0)
        })
    }
}

impl Event {
    /// Waits until the event is reached, up to the timeout.
    pub fn wait(&self) -> Result<(), Error> {
        let current = self.context.enter()?;
        // SAFETY: a live event.
        current.wait(
            || unsafe { sys::cuEventSynchronize(self.raw) },
            || unsafe { sys::cuEventQuery(self.raw) },
        )
    }
}
