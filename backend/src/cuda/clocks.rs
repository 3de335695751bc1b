//! Times the kernels of a step by the device's clock.
//!
//! Each kernel records when its predecessors ended, in the very step that is measured.

use super::context::Current;
use super::graph::{Follow, Graph, KernelNode};
use super::handle::Stream;
use super::memory::{PinnedMemory, address, alloc, pinned};
use cudarc::driver::sys::{self, CUdeviceptr};
use gristmill_runtime::{Buffer, Error, Memory};
use std::sync::Arc;

/// Bytes of a clock: nanoseconds, the minimum over the workgroups.
const CLOCK_BYTES: usize = 8;
/// Initial value of a clock, the identity of the minimum.
const UNSET_CLOCK: u64 = u64::MAX;

/// A step of kernels that record times, with one idle kernel at its end.
pub struct Clocks {
    graph: Graph,
    kernels: Vec<KernelNode>,
    groups: Vec<u32>,
    words: Buffer,
    at: CUdeviceptr,
    /// Pinned host memory for as many words, which copies may use until this is dropped.
    host: PinnedMemory,
}

impl Clocks {
    /// Builds the graph of these kernels with the usual dependencies; `end` computes nothing.
    pub fn new(
        current: &Current,
        copies: &Arc<Stream>,
        kernels: &[KernelNode],
        end: KernelNode,
        follow: Follow,
    ) -> Result<Clocks, Error> {
        let mut kernels = kernels.to_vec();
        kernels.push(end);
        let bytes = kernels.len() * CLOCK_BYTES;
        let words = alloc(copies, bytes, Memory::Scratch)?;
        let at = address(current.context(), "clocks", &words, 0, bytes)?;
        for (i, kernel) in kernels.iter_mut().enumerate() {
            if let Some(clock) = kernel.arguments.last_mut() {
                *clock = at + (i * CLOCK_BYTES) as CUdeviceptr;
            }
        }
        let groups = vec![1; kernels.len()];
        let graph = Graph::new(current, &kernels, groups.clone(), follow)?;
        Ok(Clocks {
            graph,
            kernels,
            groups,
            words,
            at,
            host: pinned(copies, bytes)?,
        })
    }

    /// Runs the step with these workgroup counts.
    ///
    /// Returns for each kernel the seconds from its start to its successor's start; they sum to the
    /// step's time. After an error, work may still be running until the stream has been waited for.
    pub fn run(
        &mut self,
        current: &Current,
        stream: &Stream,
        groups: &[u32],
    ) -> Result<Vec<f64>, Error> {
        self.groups[..groups.len()].copy_from_slice(groups);
        self.graph.resize(current, &self.kernels, &self.groups)?;
        let (host, bytes) = (self.host.raw(), self.words.len());
        // SAFETY: the allocation has that many words, and nothing else uses it: `&mut`, and earlier
        // runs have been waited for.
        unsafe { std::slice::from_raw_parts_mut(host.cast::<u64>(), self.kernels.len()) }
            .fill(UNSET_CLOCK);
        // SAFETY: the allocation has that many bytes and outlives the queued copy.
        let queued = unsafe { sys::cuMemcpyHtoDAsync_v2(self.at, host, bytes, stream.raw()) };
        current.check("cuMemcpyHtoDAsync", queued)?;
        self.graph.launch(current, stream)?;
        // SAFETY: as above.
        let queued = unsafe { sys::cuMemcpyDtoHAsync_v2(host, self.at, bytes, stream.raw()) };
        current.check("cuMemcpyDtoHAsync", queued)?;
        stream.wait()?;
        // SAFETY: as above; the copies have ended.
        let words = unsafe { std::slice::from_raw_parts(host.cast::<u64>(), self.kernels.len()) };
        Ok(words
            .windows(2)
            .map(|w| w[1].saturating_sub(w[0]) as f64 * 1e-9)
            .collect())
    }
}
