//! Recognises nests whose ranges include the rows and columns of a tile that is loaded and
//! stored as a whole.

use crate::ir::nest::ranges_of_kind;
use gristmill_uop::machine::{Machine, MachineKind};
use gristmill_uop::{Graph, Id, RangeKind};

/// Kind of the ranges that are a tile's rows and columns.
///
/// On a CPU a nest of vectors has only one `Vector` range, so two of them are a tile. On a GPU
/// `Vector` ranges are threads, so tiles have a kind of their own.
pub fn kind(machine: MachineKind) -> RangeKind {
    match machine {
        MachineKind::Cpu => RangeKind::Vector,
        MachineKind::Gpu => RangeKind::Tile,
    }
}

/// The ranges of a tile's rows and columns, if the nest has them.
pub fn ranges(g: &Graph, closed: &[Id], machine: &Machine) -> Option<[Id; 2]> {
    let of = machine.tile_fragment()?;
    let both: [Id; 2] = ranges_of_kind(g, closed, kind(machine.kind))
        .try_into()
        .ok()?;
    let bounds = both.map(|r| g.int_value(g[r].src[0]));
    (bounds == [Some(of.rows), Some(of.columns)]).then_some(both)
}
