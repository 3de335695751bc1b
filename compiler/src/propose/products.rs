//! Workgroup shapes for contractions of two half-precision factors by MMA fragments: activations
//! with a half-precision weight, or with other activations.
//!
//! A workgroup has a tile of rows and columns, which its warps divide (`warps.rs`), so that each
//! factor is read once per workgroup.

use super::context::{ProposalContext, Uncut};
use super::tiles;
use crate::ir::mma::fragment::MmaSum;
use crate::ir::nest::{Nest, host_bound};
use crate::plan::{AxisPart, Workgroup};
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::Machine;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};

/// Rows and columns of a workgroup's tile. With 64, each of eight warps has four column fragments,
/// and reads 1.5 times as much as if one operand were free.
const TILE: i64 = 64;
/// Tiles per unit from which the larger output tile is chosen: with hardly more than one the last
/// wave is nearly empty.
const WAVES_OF_MAX_TILE: i64 = 3;
/// A smaller tile, to occupy more multiprocessors: one or two fragments per warp.
const MIN_TILE: i64 = 32;

/// Candidate workgroups by fragment products, with names; the first is the heuristic's. `own` are
/// the axes that only one factor depends on. `None` if fragments do not apply.
pub fn products(
    g: &Graph,
    kernel: Uncut,
    own: [usize; 2],
    around: &ProposalContext,
) -> Option<Vec<(&'static str, Workgroup)>> {
    let Uncut { nests, axes } = kernel;
    let machine = &around.target.machine;
    let of = fragment(g, nests, machine)?;
    let size = |i: usize| g.max_of(g[axes[i]].src[0]);
    // The longer axis becomes the rows, since a fragment has more rows than columns.
    let [rows, columns] = if size(own[0]) >= size(own[1]) {
        own
    } else {
        [own[1], own[0]]
    };
    if of.sums.lanes() == 1 {
        return tiles_of_a_core(g, kernel, own, of, around);
    }
    // With half a fragment of padding, a fragment product is no faster than threads.
    if of.sums.lanes() != machine.subgroup || size(columns) < of.rows {
        return None;
    }
    let others: i64 = (0..axes.len())
        .filter(|i| !own.contains(i))
        .map(size)
        .product();
    let groups =
        |tile: i64| others * ((size(rows) + tile - 1) / tile) * ((size(columns) + tile - 1) / tile);
    let (units, halves) = (machine.units as i64, around.target.has_halves());
    let large = machine.gpu_facts().operand_tile;
    let tile = match () {
        () if halves && groups(large) >= WAVES_OF_MAX_TILE * units => large,
        () if groups(TILE) >= units => TILE,
        () => MIN_TILE,
    };
    let shape = |tall: i64, wide: i64| tiled(axes.len(), [(rows, tall), (columns, wide)]);
    Some(vec![
        ("tiles of warps", shape(tile, tile)),
        ("taller tiles", shape(2 * tile, tile)),
        ("wider tiles", shape(tile, 2 * tile)),
        ("smaller tiles", shape(tile / 2, tile / 2)),
    ])
}

/// The machine's fragment for the only sum of these nests, if its terms are a multiple
/// of the fragment's.
fn fragment(g: &Graph, nests: &[Id], machine: &Machine) -> Option<&'static Fragment> {
    let sums: Vec<Id> = g
        .toposort(nests)
        .into_iter()
        .filter(|&n| g[n].op == Op::Reduce)
        .collect();
    let (&[_], &[n]) = (nests, &sums[..]) else {
        return None;
    };
    let of = machine.fragment(MmaSum::from_node(g, n)?.operand)?;
    let &[term] = &g[n].src[1..] else { return None };
    g.int_value(g[term].src[0])
        .is_some_and(|terms| terms % of.terms == 0)
        .then_some(of)
}

/// Column panels with tiles of a CPU core. Needs row operands with contiguous terms, contiguous
/// output columns, and whole tiles only, since a tile past the end would be written to the output.
fn tiles_of_a_core(
    g: &Graph,
    kernel: Uncut,
    own: [usize; 2],
    of: &Fragment,
    around: &ProposalContext,
) -> Option<Vec<(&'static str, Workgroup)>> {
    let axes = kernel.axes;
    let Nest { offset, value, .. } = Nest::from_store(g, kernel.nests[0]);
    let sum = MmaSum::from_node(g, value)?;
    let at = g.linear(offset);
    let column = own.into_iter().find(|&i| at.coefficient(axes[i]) == 1)?;
    let row = own.into_iter().find(|&i| i != column)?;
    let whole = |i: usize, n: i64| g.int_value(g[axes[i]].src[0]).filter(|size| size % n == 0);
    let (tokens, rows) = (whole(row, of.rows)?, whole(column, of.columns)?);
    let operand = [sum.rows, sum.columns]
        .into_iter()
        .find(|&x| g.free_ranges(x).contains(&axes[row]))?;
    let straight =
        g[operand].op == Op::Load && matches!(g[g[operand].src[0]].arg, Arg::Param(_)) && {
            let at = g.linear(g[operand].src[1]);
            at.coefficient(g[value].src[1]) == 1 && at.coefficient(axes[row]) >= of.terms
        };
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
    let before = (0..axes.len())
        .filter(|i| !own.contains(i))
        .map(over)
        .collect();
    let axes = tiles::Axes {
        before,
        row: column,
        rows,
        token: row,
        tokens: Some(tokens),
        others: vec![],
    };
    straight.then(|| {
        tiles::tiles(&axes, of, around.target)
            .into_iter()
            .map(|p| (p.name, p.plan))
            .collect()
    })
}

/// Tiles of two axes; the other axes are spread over the launch.
fn tiled(axes: usize, tile: [(usize, i64); 2]) -> Workgroup {
    let others = (0..axes).filter(|&i| tile.iter().all(|t| t.0 != i));
    let over = |i: usize| AxisPart::rest(i, RangeKind::Global, 1);
    let launch = tile
        .iter()
        .map(|&(axis, n)| AxisPart::rest(axis, RangeKind::Global, n));
    let inside = tile
        .iter()
        .map(|&(axis, n)| AxisPart::new(axis, RangeKind::Loop, n, 1));
    Workgroup {
        parts: others.map(over).chain(launch).chain(inside).collect(),
    }
}
