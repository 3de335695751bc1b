//! Proposes how warps divide a half-precision matrix product
//! (`map/fragment_tiling.rs`). A warp keeps as many tiles as its registers hold, so
//! that each loaded operand is used by several products.

use crate::ir::mma::product::MmaProduct;
use crate::ir::nest::power_divisor;
use crate::plan::{NestPlan, Proposal, Warps, proposals};
use gristmill_uop::fragment::{Fragment, Shared};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};

/// Maximum column tiles per warp. More columns read rows less often, but leave fewer
/// row tiles. Not measured.
const TILES_BESIDE: i64 = 6;

/// Tiles per warp in the heuristic's plan.
pub fn tiles(g: &Graph, store: Id, product: &MmaProduct, target: &Target) -> i64 {
    let NestPlan::Warps(plan) = warps(g, store, product, target).swap_remove(0).plan else {
        return 1;
    };
    plan.wide * plan.tall
}

/// Candidate divisions of the product among a workgroup's warps, the heuristic's choice first.
pub fn warps(
    g: &Graph,
    store: Id,
    product: &MmaProduct,
    target: &Target,
) -> Vec<Proposal<NestPlan>> {
    let all = target.threads as i64 / product.of.sums.lanes();
    let most = target.machine.gpu_facts().warp_tiles;
    let of = |wide: i64, tall: i64, along: Along| {
        let tiles = Tiles { wide, tall, most };
        shared(g, product, all, tiles, along)
    };
    let rows = |wide: i64, tall: i64| of(wide, tall, Along::Rows);
    let first = if product.is_staged(g) {
        TILES_BESIDE
    } else {
        tiles_for_all_warps(product, all)
    };
    let others = [
        ("fewer columns", rows((first / 2).max(1), most)),
        ("one tile of rows", rows(first, 1)),
        ("one tile", rows(1, 1)),
        ("warps along columns", of(first, most, Along::Columns)),
        ("warps together", of(first, most, Along::Together)),
    ];
    let of_warps = |w| NestPlan::Warps(w);
    let of_each = square(product, all)
        .filter(|_| !product.is_staged(g) && product.of_both(g).is_none())
        .unwrap_or_else(|| rows(first, most));
    let (first, without_groups) = match of_groups(g, store, target) {
        Some(groups) => (groups, Some(("warps by themselves", of_each))),
        None => (of_each, None),
    };
    proposals(
        of_warps(first),
        without_groups
            .into_iter()
            .chain(others)
            .map(|(name, w)| (name, of_warps(w))),
    )
}

/// Products of several warps (wgmma), with columns read from a stage. They cover all rows and
/// columns at once, and rows are divided first.
fn of_groups(g: &Graph, store: Id, target: &Target) -> Option<Warps> {
    let any = target
        .machine
        .fragments
        .iter()
        .find(|of| of.is_of_group())?;
    let product = MmaProduct::of_stages(g, store, &target.machine)?;
    let (lanes, threads) = (any.sums.lanes(), target.threads as i64);
    let tall = any.rows / product.of.rows;
    if threads % lanes != 0 || product.high % tall != 0 {
        return None;
    }
    let (groups, high) = (threads / lanes, product.high / tall);
    let rows = power_divisor(high, groups);
    let (columns, tall) = (groups / rows, high / rows);
    // Units of eight columns if columns are contiguous in the stage, too.
    let shared = match g
        .linear(g[product.sum.columns].src[1])
        .coefficient(product.column)
    {
        1 => Shared::Transposed,
        _ => Shared::Columns,
    };
    let of = Fragment::of_stage(product.sum.operand, product.outputs / columns, shared)?;
    let facts = target.machine.gpu_facts();
    let fits = of.columns * columns == product.outputs && product.terms % of.terms == 0;
    (fits && of.sums.registers() * tall <= facts.warpgroup_sum_registers).then_some(Warps {
        batch_warps: false,
        rows,
        columns,
        wide: of.columns / product.of.columns,
        tall,
        groups: true,
    })
}

/// Column tiles per warp for operands from memory, such that all warps have work.
fn tiles_for_all_warps(product: &MmaProduct, warps: i64) -> i64 {
    let along_columns = warps / power_divisor(product.high, warps);
    ((product.tiles_beside() + along_columns - 1) / along_columns).clamp(1, TILES_BESIDE)
}

/// Tiles of a warp, at least and at most, where both operands come from memory. A tile has four
/// registers.
const TILES_FROM_MEMORY: [i64; 2] = [8, 16];

/// The division with the fewest operand loads, with all tiles of the product in registers; `None`
/// if they are too few or too many.
fn square(product: &MmaProduct, warps: i64) -> Option<Warps> {
    let beside = product.tiles_beside();
    let [least, most] = TILES_FROM_MEMORY;
    let of = |rows: i64| {
        let columns = warps / rows;
        let fits = product.high % rows == 0 && beside % columns == 0;
        let (tall, wide) = (product.high / rows, beside / columns);
        (fits && (least..=most).contains(&(tall * wide))).then_some(Warps {
            batch_warps: false,
            rows,
            columns,
            wide,
            tall,
            groups: false,
        })
    };
    // A tile has twice as many rows as columns.
    (0..=warps.ilog2())
        .filter_map(|bits| of(1 << bits))
        .min_by_key(|w| 2 * w.tall + w.wide)
}

/// Maximum tiles of a warp.
#[derive(Clone, Copy)]
struct Tiles {
    /// Tiles along the columns.
    wide: i64,
    /// Tiles along the rows.
    tall: i64,
    /// Limit of tiles along rows times columns.
    most: i64,
}

/// Order in which warps divide the axes of a product.
#[derive(Clone, Copy, PartialEq)]
enum Along {
    /// Batch range, then rows, then columns.
    Rows,
    /// Batch range, then columns, then rows.
    Columns,
    /// Rows, then columns; the batch range runs sequentially.
    Together,
}

/// Divides the product among that many warps, with at most `most` tiles each.
fn shared(g: &Graph, product: &MmaProduct, mut warps: i64, most: Tiles, along: Along) -> Warps {
    let batch = product
        .of_both(g)
        .filter(|n| warps % n == 0 && along != Along::Together);
    warps /= batch.unwrap_or(1);
    let beside = product.tiles_beside();
    let whole = product.is_fused(g);
    let blocks = if whole {
        1
    } else {
        (beside + most.wide - 1) / most.wide
    };
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
    // For staged rows, a lane takes as many as one 16-byte store holds.
    let staged = product.sum.staged_rows(g);
    let of_lane = if staged {
        8 / g.scalar(product.nest.value).bytes() as i64
    } else {
        most.most / wide
    };
    let tall = match whole {
        true => product.high / rows,
        false => power_divisor(
            product.high / rows,
            of_lane.min(most.most / wide).min(most.tall),
        ),
    };
    Warps {
        batch_warps: batch.is_some(),
        rows,
        columns,
        wide,
        tall,
        groups: false,
    }
}
