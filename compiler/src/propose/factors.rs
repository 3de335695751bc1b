//! Tiles of contractions of plain factors (`propose/find_contraction.rs`), by threads or vectors: each factor is read once for several outputs.

use crate::ir::nest::host_bound;
use crate::plan::{Part, Workgroup};
use gristmill_uop::{Graph, Id, RangeKind};

/// Outputs of a tile along one axis, in registers.
const TALL: i64 = 4;
/// Outputs of a tile along the other axis: lanes, or threads.
const WIDE: i64 = 64;

/// Tiles of two axes of the output, on each of which one factor depends alone, the others over the launch: rows in registers beside one another,
/// columns for lanes or threads.
pub fn tiled(g: &Graph, axes: &[Id], [rows, columns]: [usize; 2]) -> Workgroup {
    let others = (0..axes.len()).filter(|&i| i != rows && i != columns);
    let over = |i: usize| Part::rest(i, if host_bound(g, axes[i]) { RangeKind::Global } else { RangeKind::Loop }, 1);
    let tile = [
        Part::rest(rows, RangeKind::Global, TALL),
        Part::rest(columns, RangeKind::Global, WIDE),
        Part::of(rows, RangeKind::Upcast, TALL, 1),
        Part::of(columns, RangeKind::Loop, WIDE, 1),
    ];
    Workgroup { parts: others.map(over).chain(tile).collect() }
}
