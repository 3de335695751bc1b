//! When the kernels of a step ran, by the device's clock: every launch notes when its predecessors had ended, in the very step that is measured.

use super::context::Current;
use super::graph::{Follow, Graph, KernelNode};
use super::handle::Stream;
use super::memory::{PinnedMemory, address, alloc, pinned};
use cudarc::driver::sys::{self, CUdeviceptr};
use gristmill_runtime::{Buffer, Error, Memory};
use std::sync::Arc;

/// Bytes of a clock: nanoseconds, the least of what workgroups noted.
const CLOCK_BYTES: usize = 8;
/// A clock that nobody has looked at.
const UNSET_CLOCK: u64 = u64::MAX;

/// A step whose kernels note the time, and one more behind them.
pub struct Clocks {
    graph: Graph,
    kernels: Vec<KernelNode>,
    groups: Vec<u32>,
    words: Buffer,
    at: CUdeviceptr,
    /// As many words of the host, which copies may use for as long as this lives.
    host: PinnedMemory,
}

impl Clocks {
    /// Of these kernels, which follow one another as in any step; `end` computes nothing.
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
        Ok(Clocks { graph, kernels, groups, words, at, host: pinned(copies, bytes)? })
    }

    /// Runs the step with so many workgroups each. Returns for every kernel the seconds from its turn to that of the one behind it: they add up to
    /// the step. After an error some of it may run still, until the stream has been waited for.
    pub fn run(&mut self, current: &Current, stream: &Stream, groups: &[u32]) -> Result<Vec<f64>, Error> {
        self.groups[..groups.len()].copy_from_slice(groups);
        self.graph.resize(current, &self.kernels, &self.groups)?;
        let (host, bytes) = (self.host.raw(), self.words.len());
        // SAFETY: as many words as were allocated, which nobody uses now; `&mut`, and what was run before has been waited for.
        unsafe { std::slice::from_raw_parts_mut(host.cast::<u64>(), self.kernels.len()) }.fill(UNSET_CLOCK);
        // SAFETY: as many bytes as were allocated, which live as long as what is queued.
        let queued = unsafe { sys::cuMemcpyHtoDAsync_v2(self.at, host, bytes, stream.raw()) };
        current.check("cuMemcpyHtoDAsync", queued)?;
        self.graph.launch(current, stream)?;
        // SAFETY: as above.
        let queued = unsafe { sys::cuMemcpyDtoHAsync_v2(host, self.at, bytes, stream.raw()) };
        current.check("cuMemcpyDtoHAsync", queued)?;
        stream.wait()?;
        // SAFETY: as above; the copies have ended.
        let words = unsafe { std::slice::from_raw_parts(host.cast::<u64>(), self.kernels.len()) };
        Ok(words.windows(2).map(|w| w[1].saturating_sub(w[0]) as f64 * 1e-9).collect())
    }
}
