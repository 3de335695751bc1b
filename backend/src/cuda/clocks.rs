//! When the kernels of a step ran, by the device's clock: every launch notes when its predecessors had ended, in the very step that is measured.

use super::driver::{Context, Stream, check};
use super::graph::{Follow, Graph, Node};
use super::memory::{address, alloc};
use cudarc::driver::sys::{self, CUdeviceptr};
use gristmill_runtime::{Buffer, Error, Memory};
use std::sync::Arc;

/// Bytes of a clock: nanoseconds, the least of what workgroups noted.
const CLOCK: usize = 8;
/// A clock that nobody has looked at.
const NEVER: u64 = u64::MAX;

/// A step whose kernels note the time, and one more behind them.
pub struct Clocks {
    graph: Graph,
    kernels: Vec<Node>,
    groups: Vec<u32>,
    words: Buffer,
    at: CUdeviceptr,
}

impl Clocks {
    /// Of these kernels, which follow one another as in any step; `end` computes nothing.
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        kernels: &[Node],
        end: Node,
        follow: Follow,
    ) -> Result<Clocks, Error> {
        let mut kernels = kernels.to_vec();
        kernels.push(end);
        let bytes = kernels.len() * CLOCK;
        let words = alloc(context, stream, bytes, Memory::Scratch)?;
        let at = address(context, "clocks", &words, 0, bytes)?;
        for (i, kernel) in kernels.iter_mut().enumerate() {
            if let Some(clock) = kernel.arguments.last_mut() {
                *clock = at + (i * CLOCK) as CUdeviceptr;
            }
        }
        let groups = vec![1; kernels.len()];
        let graph = Graph::new(context, &kernels, groups.clone(), follow)?;
        Ok(Clocks { graph, kernels, groups, words, at })
    }

    /// Runs the step with so many workgroups each. Returns for every kernel the seconds from its turn to that of the one behind it: they add up to
    /// the step.
    pub fn run(&mut self, stream: &Stream, groups: &[u32]) -> Result<Vec<f64>, Error> {
        let mut words = vec![NEVER; self.kernels.len()];
        self.groups[..groups.len()].copy_from_slice(groups);
        self.graph.resize(&self.kernels, &self.groups)?;
        // SAFETY: as many bytes as were allocated.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.at, words.as_ptr().cast(), self.words.len(), stream.raw())
        })?;
        self.graph.launch(stream)?;
        // SAFETY: as above; what is copied is there once the stream has been waited for.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(words.as_mut_ptr().cast(), self.at, self.words.len(), stream.raw())
        })?;
        stream.wait()?;
        Ok(words.windows(2).map(|w| w[1].saturating_sub(w[0]) as f64 * 1e-9).collect())
    }
}
