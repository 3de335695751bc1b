//! Copies between GPUs, ordered with the steps of both.

use super::context::{CudaContext, Current};
use super::handle::{Event, Stream, event};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};
use gristmill_runtime::Error;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// A device's part in copies between GPUs.
pub struct PeerCopies {
    state: Mutex<State>,
}

struct State {
    /// Marks what the other device waits for in this one's steps.
    mark: Event,
    /// Numbers of the GPUs whose memory this one was asked to read directly.
    asked: HashSet<usize>,
}

impl PeerCopies {
    /// Creates the part of the current context's device.
    pub fn new(current: &Current) -> Result<PeerCopies, Error> {
        Ok(PeerCopies {
            state: Mutex::new(State {
                mark: event(current)?,
                asked: HashSet::new(),
            }),
        })
    }
    /// Makes what is queued in `other` from now on wait for what is queued in `own` so far.
    fn order(&self, own: &Arc<Stream>, other: &Arc<Stream>) -> Result<(), Error> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        own.mark(&own.context().enter()?, &state.mark)?;
        other.wait_for(&other.context().enter()?, &state.mark)
    }
    /// Lets this device read the other's memory without the host, where the machine allows it. The
    /// driver copies through the host otherwise.
    fn connect(&self, own: &Arc<CudaContext>, other: &Arc<CudaContext>) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if own.number == other.number || !state.asked.insert(other.number) {
            return Ok(());
        }
        let current = own.enter()?;
        // SAFETY: both contexts are alive.
        match unsafe { sys::cuCtxEnablePeerAccess(other.raw(), 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
            | CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => Ok(()),
            result => current.check("cuCtxEnablePeerAccess", result),
        }
    }
    /// Queues a copy of `bytes` bytes from the first end to the second, whose steps carry it out:
    /// behind the steps of both, and before those that either starts later.
    pub fn copy(
        [(from, source), (to, target)]: [(&PeerCopies, &Arc<Stream>); 2],
        [read, written]: [CUdeviceptr; 2],
        bytes: usize,
    ) -> Result<(), Error> {
        to.connect(target.context(), source.context())?;
        from.order(source, target)?;
        let current = target.context().enter()?;
        let contexts = [source, target].map(|stream| stream.context().raw());
        // SAFETY: the caller has checked both ranges; steps keep the buffers alive.
        let queued = unsafe {
            let stream = target.raw();
            sys::cuMemcpyPeerAsync(written, contexts[1], read, contexts[0], bytes, stream)
        };
        current.check("cuMemcpyPeerAsync", queued)?;
        drop(current);
        to.order(target, source)
    }
}
