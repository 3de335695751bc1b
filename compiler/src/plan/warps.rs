//! Proposals for how warps share a matrix product of halves (`map/fragment_tiling.rs`). A warp keeps as many tiles as registers have room for, so that each
//! operand is read once for several products.

use crate::ir::mma::product::MmaProduct;
use crate::ir::nest::power_divisor;
use crate::plan::{NestPlan, Proposal, Warps, proposals};
use gristmill_uop::fragment::{Fragment, Shared};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};

/// Tiles of a warp, of four registers each: 48 of an H200's 128 a thread. Not measured: more save loads of operands, and leave no registers for these.
const TILES_OF_WARP: i64 = 12;
/// Tiles of a warp beside one another, at most. Not measured: more read rows less often, and leave fewer tiles above one another.
const TILES_BESIDE: i64 = 6;

/// Registers of sums that a thread of several warps' products keeps, at most: half of the 255 that it can have. With as many GLM's attention of 2,048 tokens has 221 in all, of which 32
/// are scores.
const SUMS_OF_GROUPS: i64 = 128;

/// Tiles that a warp keeps at first.
pub fn tiles(g: &Graph, store: Id, product: &MmaProduct, target: &Target) -> i64 {
    let NestPlan::Warps(plan) = warps(g, store, product, target).swap_remove(0).plan else { return 1 };
    plan.wide * plan.tall
}

/// How the warps of a workgroup could share the product, the heuristic's choice first.
pub fn warps(g: &Graph, store: Id, product: &MmaProduct, target: &Target) -> Vec<Proposal<NestPlan>> {
    let all = target.threads as i64 / product.of.sums.lanes();
    let of = |wide: i64, tall: i64, along: Along| shared(g, product, all, Tiles { wide, tall }, along);
    let rows = |most: i64, tall: i64| of(most, tall, Along::Rows);
    let first = if product.is_staged(g) { TILES_BESIDE } else { tiles_for_all_warps(product, all) };
    let others = [
        ("fewer columns", rows((first / 2).max(1), TILES_OF_WARP)),
        ("one tile of rows", rows(first, 1)),
        ("one tile", rows(1, 1)),
        ("warps along columns", of(first, TILES_OF_WARP, Along::Columns)),
        ("warps together", of(first, TILES_OF_WARP, Along::Together)),
    ];
    let of_warps = |w| NestPlan::Warps(w);
    let of_each = rows(first, TILES_OF_WARP);
    let (first, without_groups) = match of_groups(g, store, target) {
        Some(groups) => (groups, Some(("warps by themselves", of_each))),
        None => (of_each, None),
    };
    proposals(of_warps(first), without_groups.into_iter().chain(others).map(|(name, w)| (name, of_warps(w))))
}

/// Products of several warps, whose columns they read from the stage that these are in: of all rows and columns at once, the rows first shared.
fn of_groups(g: &Graph, store: Id, target: &Target) -> Option<Warps> {
    let any = target.machine.fragments.iter().find(|of| of.is_of_group())?;
    let product = MmaProduct::of_stages(g, store, &target.machine)?;
    let (lanes, threads) = (any.sums.lanes(), target.threads as i64);
    let tall = any.rows / product.of.rows;
    if threads % lanes != 0 || product.high % tall != 0 {
        return None;
    }
    let (groups, high) = (threads / lanes, product.high / tall);
    let rows = power_divisor(high, groups);
    let (columns, tall) = (groups / rows, high / rows);
    // Units of eight columns where these are neighbours in the stage, too.
    let shared = match g.linear(g[product.sum.columns].src[1]).coefficient(product.column) {
        1 => Shared::Transposed,
        _ => Shared::Columns,
    };
    let of = Fragment::of_stage(product.sum.operand, product.outputs / columns, shared)?;
    let fits = of.columns * columns == product.outputs && product.terms % of.terms == 0;
    (fits && of.sums.registers() * tall <= SUMS_OF_GROUPS).then_some(Warps {
        batch_warps: false,
        rows,
        columns,
        wide: of.columns / product.of.columns,
        tall,
        groups: true,
    })
}

/// Tiles beside one another of operands from memory, so that every one of so many warps has some.
fn tiles_for_all_warps(product: &MmaProduct, warps: i64) -> i64 {
    let along_columns = warps / power_divisor(product.high, warps);
    ((product.tiles_beside() + along_columns - 1) / along_columns).clamp(1, TILES_BESIDE)
}

/// Tiles of a warp, at most.
#[derive(Clone, Copy)]
struct Tiles {
    /// Beside one another.
    wide: i64,
    /// Above one another.
    tall: i64,
}

/// What warps share first.
#[derive(Clone, Copy, PartialEq)]
enum Along {
    /// What shares nothing, then rows, then columns.
    Rows,
    /// What shares nothing, then columns, then rows.
    Columns,
    /// Rows, then columns; elements of the range that both operands depend on come one after the other.
    Together,
}

/// How so many warps share it, with at most so many tiles beside one another and above one another.
fn shared(g: &Graph, product: &MmaProduct, mut warps: i64, most: Tiles, along: Along) -> Warps {
    let batch = product.of_both(g).filter(|n| warps % n == 0 && along != Along::Together);
    warps /= batch.unwrap_or(1);
    let beside = product.tiles_beside();
    let whole = product.is_fused(g);
    let blocks = if whole { 1 } else { (beside + most.wide - 1) / most.wide };
    let (rows, columns) = match along {
        Along::Columns => {
            let columns = power_divisor(blocks, warps);
            (power_divisor(product.high, warps / columns), columns)
        }
        _ => {
            let rows = power_divisor(product.high, warps);
            (rows, power_divisor(blocks, warps / rows))
        }
    };
    let wide = (beside + blocks - 1) / blocks;
    // Of rows in a stage a lane takes as many as one store of 16 bytes has room for.
    let staged = product.sum.staged_rows(g);
    let of_lane = if staged { 8 / g.scalar(product.nest.value).bytes() as i64 } else { TILES_OF_WARP / wide };
    let tall = match whole {
        true => product.high / rows,
        false => power_divisor(product.high / rows, of_lane.min(TILES_OF_WARP / wide).min(most.tall)),
    };
    Warps { batch_warps: batch.is_some(), rows, columns, wide, tall, groups: false }
}
