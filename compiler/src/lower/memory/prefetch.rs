//! What is asked for before it is needed: on a GPU spans of weights and of caches (`span.rs`); on a CPU the lines behind what is read (`line.rs`), and the
//! next tile of a cache (`tile.rs`).

mod line;
mod span;
mod tile;

use crate::lower::linear_ir::Code;
use gristmill_uop::Graph;

pub use span::prefetch_spans;

/// A CPU's code with lines and tiles asked for, `ahead` iterations ahead; the rows of `streams` follow one another in memory.
pub fn prefetch_lines(g: &Graph, code: Code, ahead: i64, streams: &[u32]) -> Code {
    if ahead == 0 {
        return code;
    }
    let tiles = tile::plan(g, &code);
    let statements = line::prefetch(g, &code, &tiles, ahead, streams);
    Code { statements, ..code }
}
