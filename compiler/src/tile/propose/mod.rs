//! Proposals for what a workgroup computes: which output axes the launch is spread over, and the tile of outputs that a workgroup has. By class of
//! kernel: what a decomposition has asked for (here), contractions with a packed weight (`contraction.rs`, `tiles.rs`), everything else (`plain.rs`).

mod around;
mod contraction;
pub mod factors;
pub mod nest;
mod plain;
mod threads;
mod tiles;
pub mod vectors;
pub mod warps;

pub use around::Around;
pub use contraction::COPIES;

use super::plan::{Part, Proposal, Workgroup, proposals};
use crate::nest::host_bound;
use crate::request::Hint;
use contraction::contraction;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::{Graph, Id, RangeKind};
use plain::plain;

/// The axes of the output of these nests: ranges that all of them share. A `Cat`'s axis has one range a part and stays inside the workgroup.
pub fn axes(g: &Graph, nests: &[Id]) -> Vec<Id> {
    let mut axes: Vec<Id> = g[nests[0]].src[3..].to_vec();
    for &n in &nests[1..] {
        axes.retain(|r| g[n].src[3..].contains(r));
    }
    axes
}

/// What a workgroup of these nests could compute, the heuristic's choice first.
pub fn workgroup(g: &Graph, nests: &[Id], around: &Around) -> Vec<Proposal<Workgroup>> {
    let axes = axes(g, nests);
    if let Some(hint) = around.hint.filter(|h| h.globals > 0) {
        return proposals(hinted(g, &axes, hint, around.node), []);
    }
    if let Some(found) = contraction(g, nests, &axes, around) {
        return found;
    }
    let threads = around.target.machine.kind == MachineKind::Gpu;
    let spread: Vec<usize> = (0..axes.len()).filter(|&i| threads || host_bound(g, axes[i])).collect();
    plain(g, &axes, &spread, nests, around)
}

/// The shape that a decomposition asks for.
fn hinted(g: &Graph, axes: &[Id], hint: &Hint, node: Id) -> Workgroup {
    // The first axes of the node that have a range.
    let dims = g.shape(node);
    let ranged = dims[..hint.globals].iter().filter(|&&d| g.int_value(d) != Some(1)).count();
    let leading = ranged.min(axes.len());
    let mut parts = Vec::new();
    for axis in 0..leading {
        let tile = if axis + 1 == leading { hint.tile } else { 1 };
        parts.extend(Part::tiled(axis, tile, RangeKind::Global, hint.inner));
    }
    Workgroup { parts }
}
