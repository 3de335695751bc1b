//! Inserts prefetches: on GPUs, spans of weights and of KV caches (`span.rs`); on CPUs, cache lines
//! ahead of loads (`line.rs`) and the next tile of a KV cache (`tile.rs`).

mod line;
mod span;
mod tile;

use crate::lower::linear_ir::Code;
use gristmill_uop::Graph;
use gristmill_uop::target::Target;

pub use span::prefetch_spans;

/// Inserts software prefetches of cache lines and tiles into a CPU's code, as many iterations early
/// as the target's tuning says, or none. The rows of `streams` are contiguous in memory.
pub fn prefetch_lines(g: &Graph, code: Code, target: &Target, streams: &[u32]) -> Code {
    let ahead = target.tuning.prefetch.into();
    if ahead == 0 {
        return code;
    }
    let tiles = tile::plan(g, &code);
    let statements = line::prefetch(g, &code, &tiles, ahead, streams, target.machine.cpu_facts());
    Code { statements, ..code }
}
