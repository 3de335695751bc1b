//! Tiles of contractions of plain factors (`propose/find_contraction.rs`) for threads or vectors:
//! each factor is read once for several outputs.

use crate::ir::nest::host_bound;
use crate::plan::{AxisPart, Workgroup};
use gristmill_uop::{Graph, Id, RangeKind};

/// Outputs of a tile along one axis, in registers.
const TALL: i64 = 4;
/// Outputs of a tile along the other axis, in lanes or threads.
const WIDE: i64 = 64;

/// Tiles of two output axes that only one factor each depends on; other axes are spread over the
/// launch. Rows go to registers, columns to lanes or threads.
pub fn tiled(g: &Graph, axes: &[Id], [rows, columns]: [usize; 2]) -> Workgroup {
    let others = (0..axes.len()).filter(|&i| i != rows && i != columns);
    let over = |i: usize| {
        AxisPart::rest(
            i,
            if host_bound(g, axes[i]) {
                RangeKind::Global
            } else {
                RangeKind::Loop
            },
            1,
        )
    };
    let tile = [
        AxisPart::rest(rows, RangeKind::Global, TALL),
        AxisPart::rest(columns, RangeKind::Global, WIDE),
        AxisPart::new(rows, RangeKind::Upcast, TALL, 1),
        AxisPart::new(columns, RangeKind::Loop, WIDE, 1),
    ];
    Workgroup {
        parts: others.map(over).chain(tile).collect(),
    }
}
