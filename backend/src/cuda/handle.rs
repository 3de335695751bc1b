//! Handles of the driver that free themselves: streams, events, and whatever else is made and destroyed.

use super::context::{CudaContext, Current};
use cudarc::driver::sys::{self, CUresult};
use gristmill_runtime::Error;
use std::sync::Arc;

/// A handle of the driver, destroyed when dropped.
pub struct Handle<T: Copy> {
    raw: T,
    destroy: unsafe fn(T) -> CUresult,
    context: Arc<CudaContext>,
}

// SAFETY: handles belong to a context, not to a thread (`Handle::new`). Those that must not be used from two threads at once (graphs) are behind
// `&mut`.
unsafe impl<T: Copy> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Handle<T> {}

impl<T: Copy> Handle<T> {
    /// What `make` writes; `destroy` ends it.
    ///
    /// # Safety
    /// When `make` answers success it has written a handle that belongs to the current context and to no thread, that nobody else destroys, and
    /// that `destroy` takes once, with that context current.
    pub unsafe fn new(
        current: &Current,
        what: &str,
        destroy: unsafe fn(T) -> CUresult,
        make: impl FnOnce(*mut T) -> CUresult,
    ) -> Result<Handle<T>, Error> {
        // SAFETY: it is written, as the caller says.
        Ok(Handle { raw: unsafe { current.get(what, make) }?, destroy, context: current.context().clone() })
    }
    /// The handle itself, for as long as this lives.
    pub fn raw(&self) -> T {
        self.raw
    }
    /// Its device.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

impl<T: Copy> Drop for Handle<T> {
    /// On a device where work may run for good it is left.
    fn drop(&mut self) {
        if self.context.is_stuck() {
            return;
        }
        if let Ok(_current) = self.context.enter_to_destroy() {
            // SAFETY: made in this context, and nobody has it any more. Nothing can be done about an error.
            unsafe { (self.destroy)(self.raw) };
        }
    }
}

/// A queue of work.
pub type Stream = Handle<sys::CUstream>;
/// A mark in a queue.
pub type Event = Handle<sys::CUevent>;

/// A stream of its own, that does not wait for the default one.
pub fn stream(current: &Current) -> Result<Stream, Error> {
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: writes a new stream.
    unsafe { Handle::new(current, "cuStreamCreate", sys::cuStreamDestroy_v2, |out| sys::cuStreamCreate(out, flags)) }
}

/// An event without a time.
pub fn event(current: &Current) -> Result<Event, Error> {
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
    // SAFETY: writes a new event.
    unsafe { Handle::new(current, "cuEventCreate", sys::cuEventDestroy_v2, |out| sys::cuEventCreate(out, flags)) }
}

impl Stream {
    /// Waits for all that is in it, as long as work may take. Errors of kernels that ran are found here.
    pub fn wait(&self) -> Result<(), Error> {
        let current = self.context.enter()?;
        // SAFETY: a stream that lives.
        current.wait(|| unsafe { sys::cuStreamSynchronize(self.raw) }, || unsafe { sys::cuStreamQuery(self.raw) })
    }
    /// Waits for all that is in it, however long that takes: for copies to and from memory that somebody lent. A kernel that does not end is no
    /// reason to wait, since copies have a stream of their own; and of a device that is gone the driver says so.
    pub fn wait_for_copies(&self, current: &Current) -> Result<(), Error> {
        // SAFETY: a stream that lives.
        let wait = || current.check("a copy", unsafe { sys::cuStreamSynchronize(self.raw) });
        wait().or_else(|first| {
            self.settled(wait(), &first)?;
            Err(first)
        })
    }
    /// Waits until nothing that was queued in it runs, whatever else goes wrong: for whoever is about to free or use again what that work uses.
    /// Where it cannot be said whether it runs, the device is lost and nothing of it is freed.
    pub fn settle(&self) -> Result<(), Error> {
        self.wait().or_else(|first| self.settled(self.wait(), &first))
    }
    /// What a second try to wait says, after a first that failed: a device that refuses both cannot be told to be idle.
    fn settled(&self, second: Result<(), Error>, first: &Error) -> Result<(), Error> {
        second.map_err(|error| if error.is_lost() { error } else { self.context.lose_track(first) })
    }
    /// Marks where it is.
    pub fn mark(&self, current: &Current, event: &Event) -> Result<(), Error> {
        // SAFETY: both live, in one context, which is current.
        current.check("cuEventRecord", unsafe { sys::cuEventRecord(event.raw, self.raw) })
    }
    /// What is queued from now on waits for that mark.
    pub fn follow(&self, current: &Current, event: &Event) -> Result<(), Error> {
        // SAFETY: as above.
        current.check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }
}

impl Event {
    /// Waits until its mark is passed, as long as work may take.
    pub fn wait(&self) -> Result<(), Error> {
        let current = self.context.enter()?;
        // SAFETY: an event that lives.
        current.wait(|| unsafe { sys::cuEventSynchronize(self.raw) }, || unsafe { sys::cuEventQuery(self.raw) })
    }
}
