//! Proposes workgroup shapes: the output axes that the launch is spread over, and the output
//! tile of a workgroup.
//!
//! Proposals depend on the class of kernel: shapes requested by a decomposition (here),
//! contractions (`propose/find_contraction.rs`) with a packed factor (`contraction.rs`, `tiles.rs`)
//! or half-precision factors (`products.rs`), and everything else (`plain.rs`, `factors.rs`).

mod context;
mod contraction;
mod factors;
mod find_contraction;
pub mod launch;
pub mod nest;
mod plain;
mod products;
pub mod stages;
mod threads;
mod tiles;
pub mod vectors;

pub use context::ProposalContext;
use context::Uncut;
pub use contraction::COPIES;

use crate::ir::hints::Hint;
use crate::plan::{AxisPart, FIRST, Proposal, Workgroup, proposals};
use contraction::contraction;
use find_contraction::Contraction;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::{Graph, Id, RangeKind};
use plain::plain;

/// Output axes of these nests: ranges shared by all of them. The axis of a `Cat` has a range per
/// part and stays inside the workgroup.
pub fn axes(g: &Graph, nests: &[Id]) -> Vec<Id> {
    let mut axes: Vec<Id> = g[nests[0]].src[3..].to_vec();
    for &n in &nests[1..] {
        axes.retain(|r| g[n].src[3..].contains(r));
    }
    axes
}

/// The heuristic's workgroup for these nests, used during the fusion search.
pub fn first(g: &Graph, nests: &[Id], around: &ProposalContext) -> Workgroup {
    workgroup(g, nests, around, false).swap_remove(0).plan
}

/// A workgroup half as large as the heuristic's, for a single-token contraction with too few
/// workgroups to give each processor unit more than one.
pub fn smaller(g: &Graph, nests: &[Id], around: &ProposalContext) -> Option<Workgroup> {
    let asked_for = around.hint.is_some_and(|h| h.globals > 0)
        || around.derived.staged.contains_key(&around.node);
    if asked_for || around.target.machine.kind == MachineKind::Cpu {
        return None;
    }
    let found = Contraction::from_nests(g, nests, around.derived)?;
    contraction::smaller(g, nests, &axes(g, nests), found.packed.as_ref()?, around)
}

/// Candidate workgroups of these nests, the heuristic's first; only that one unless `all` is set,
/// which takes longer.
pub fn workgroup(
    g: &Graph,
    nests: &[Id],
    around: &ProposalContext,
    all: bool,
) -> Vec<Proposal<Workgroup>> {
    let axes = axes(g, nests);
    if let Some(hint) = around.hint.filter(|h| h.globals > 0) {
        return proposals(hinted(g, &axes, hint, around.node), []);
    }
    if around.derived.staged.contains_key(&around.node)
        && let Some(mut shapes) = tiles::of_subgroups(g, &axes, around.target)
    {
        shapes.truncate(if all { shapes.len() } else { 1 });
        return shapes;
    }
    let kernel = Uncut { nests, axes: &axes };
    let found = Contraction::from_nests(g, nests, around.derived);
    let own = found.as_ref().and_then(|c| c.own_axes(g, &axes));
    let without = || match found.as_ref().and_then(|c| c.packed.as_ref()) {
        Some(rows) => contraction(g, nests, &axes, rows, around),
        None => plain(g, kernel, own, around, all),
    };
    let mut shapes = match own.and_then(|own| products::products(g, kernel, own, around)) {
        None => without(),
        Some(mut products) => {
            let first = products.remove(0).1;
            let renamed = |p: Proposal<Workgroup>| {
                (
                    if p.name == FIRST {
                        "without fragments"
                    } else {
                        p.name
                    },
                    p.plan,
                )
            };
            let others = if all { without() } else { Vec::new() };
            proposals(
                first,
                products.into_iter().chain(others.into_iter().map(renamed)),
            )
        }
    };
    shapes.truncate(if all { shapes.len() } else { 1 });
    shapes
}

/// The shape that a decomposition requests.
fn hinted(g: &Graph, axes: &[Id], hint: &Hint, node: Id) -> Workgroup {
    // The leading axes of the node that have a range.
    let dims = g.shape(node);
    let ranged = dims[..hint.globals]
        .iter()
        .filter(|&&d| g.int_value(d) != Some(1))
        .count();
    let leading = ranged.min(axes.len());
    let mut parts = Vec::new();
    for axis in 0..leading {
        let tile = if axis + 1 == leading { hint.tile } else { 1 };
        parts.extend(AxisPart::tiled(axis, tile, RangeKind::Global, hint.inner));
    }
    Workgroup { parts }
}
