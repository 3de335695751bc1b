//! Maps a nest that sums products of 16-bit floats to warps, in the layout of its MMA fragment
//! (`lower/mma/f16.rs`).
//!
//! A plan gives the tile sizes. The rows of a lane are neighbours; where they are contiguous, one
//! load reads them all.

use crate::ir::mma::fragment::along;
use crate::ir::mma::product::MmaProduct;
use crate::ir::nest::{Nest, Ranges, divisor, strided};
use crate::plan::Warps;
use gristmill_uop::fragment::{Fragment, Shared};
use gristmill_uop::machine::Machine;
use gristmill_uop::{Graph, Id, Op, RangeKind, ReduceOp};
use rustc_hash::FxHashMap;

/// Returns whether consecutive elements in memory differ by one in range `r`.
fn contiguous(g: &mut Graph, load: Id, r: Id) -> bool {
    let at = g.linear(g[load].src[1]);
    at.terms
        .iter()
        .any(|&(t, distance)| t == r && distance == 1)
}

/// Rewrites a nest as the plan says; `None` if it is no such product. A count that does not divide
/// is replaced by the next smaller divisor.
pub fn nest(
    g: &mut Graph,
    store: Id,
    plan: &Warps,
    machine: &Machine,
    ranges: &mut Ranges,
) -> Option<Id> {
    let product = if plan.groups {
        MmaProduct::of_stages(g, store, machine)?
    } else {
        MmaProduct::from_store(g, store, machine)?
    };
    let counts = Counts::from_plan(&product, plan, machine)?;
    let tiles = TileRanges::new(g, &product, &counts, plan, ranges);
    // Lanes read neighbouring rows without bank conflicts only if the rows are contiguous.
    let as_laid_out = product.sum.staged_rows(g) && !contiguous(g, product.sum.rows, product.row);
    let row_at = tiles.row_at(g, &counts, as_laid_out);
    let column_at = tiles.column_at(g, &counts, &product);
    let term_at = strided(g, &[(tiles.step, counts.at_once), (tiles.at, 1)]);
    let mut map = FxHashMap::from_iter([
        (product.row, row_at),
        (product.column, column_at),
        (product.term, term_at),
    ]);
    map.extend(tiles.both);
    map.extend(tiles.part);
    let MmaProduct {
        nest:
            Nest {
                buffer,
                offset,
                value,
                ..
            },
        id,
        ref alone,
        ..
    } = product;
    let offset = g.substitute(offset, &mut map);
    let terms = g.substitute(g[id].src[0], &mut map);
    let over = alone
        .iter()
        .copied()
        .chain([tiles.step, tiles.at])
        .chain(tiles.part.map(|p| p.1));
    let over = present(g, over);
    map.insert(id, g.reduce_ranges(terms, &over, ReduceOp::Add));
    let value = g.substitute(value, &mut map);
    let closed = present(g, tiles.both.map(|b| b.1).into_iter().chain(tiles.closed()));
    Some(
        Nest {
            buffer,
            offset,
            value,
            adds: false,
            closed,
        }
        .store(g),
    )
}

/// Tile counts of a product.
struct Counts {
    of: &'static Fragment,
    /// Warps per fragment; each has rows of its own.
    of_product: i64,
    /// Fragments along the rows.
    high: i64,
    /// Warps along the rows.
    row_warps: i64,
    /// Warps along the columns.
    column_warps: i64,
    /// Tiles of a warp along the rows.
    tall: i64,
    /// Tiles of a warp along the columns.
    wide: i64,
    /// Column blocks of `wide` tiles, over all warps.
    blocks: i64,
    /// Terms multiplied before the next are loaded.
    at_once: i64,
}

impl Counts {
    fn from_plan(product: &MmaProduct, plan: &Warps, machine: &Machine) -> Option<Counts> {
        let of = match plan.groups {
            true => Fragment::of_stage(
                product.sum.operand,
                plan.wide * product.of.columns,
                Shared::Columns,
            )?,
            false => product.of,
        };
        let high = product.high * product.of.rows / of.rows;
        let blocks = (product.tiles_beside() + plan.wide - 1) / plan.wide;
        let (row_warps, column_warps) = (divisor(high, plan.rows), divisor(blocks, plan.columns));
        let tall = divisor(high / row_warps, plan.tall);
        // Operands of multi-warp products occupy no registers.
        let at_once = match product.terms % (2 * of.terms) {
            _ if plan.groups => product.terms,
            0 => 2 * of.terms,
            _ => of.terms,
        };
        let of_product = of.sums.lanes() / machine.subgroup;
        Some(Counts {
            of,
            of_product,
            high,
            row_warps,
            column_warps,
            tall,
            wide: plan.wide,
            blocks,
            at_once,
        })
    }
}

/// Ranges of a product that is mapped to warps.
struct TileRanges {
    /// The range on which both operands depend, and its replacement.
    both: Option<(Id, Id)>,
    /// Blocks of rows and of columns that a warp computes in sequence.
    row_step: Id,
    block_step: Id,
    /// Warps along the rows and along the columns.
    row_warp: Id,
    block_warp: Id,
    /// Warps within a multi-warp fragment; each has rows of its own.
    quarter: Id,
    /// Lanes along the rows and along the columns.
    lane: Id,
    beside_lane: Id,
    /// Tiles of a warp along the rows and along the columns.
    row_tile: Id,
    tile: Id,
    /// Rows and columns of a lane.
    i: Id,
    j: Id,
    /// Steps of the terms, and the terms of a step.
    step: Id,
    at: Id,
    /// The range of the two parts of an operand, and its replacement.
    part: Option<(Id, Id)>,
}

impl TileRanges {
    /// Creates the ranges in loop order; their numbers follow it.
    fn new(
        g: &mut Graph,
        product: &MmaProduct,
        counts: &Counts,
        plan: &Warps,
        ranges: &mut Ranges,
    ) -> TileRanges {
        use RangeKind::{Loop, Reduce, Unroll, Upcast, Vector};
        let mut range = |g: &mut Graph, n: i64, kind: RangeKind| ranges.fixed(g, n, kind);
        let &Counts {
            of,
            of_product,
            high,
            row_warps,
            column_warps,
            tall,
            wide,
            blocks,
            at_once,
        } = counts;
        let of_both = if plan.batch_warps { Vector } else { Loop };
        let both = product
            .both
            .map(|r| (r, range(g, g.max_of(g[r].src[0]), of_both)));
        let row_step = range(g, high / row_warps / tall, Loop);
        let block_step = range(g, blocks / column_warps, Loop);
        let (row_warp, block_warp) = (range(g, row_warps, Vector), range(g, column_warps, Vector));
        let quarter = range(g, of_product, Vector);
        let lane = range(g, along(of.sums.lanes, true).count, Vector);
        let beside_lane = range(g, along(of.sums.lanes, false).count, Vector);
        let (row_tile, tile) = (range(g, tall, Upcast), range(g, wide, Upcast));
        let i = range(g, along(of.sums.registers, true).count, Upcast);
        let j = range(g, product.of_lane(), Upcast);
        let (step, at) = (
            range(g, product.terms / at_once, Reduce),
            range(g, at_once, Unroll),
        );
        let part = product.sum.part.map(|old| (old, range(g, 2, Unroll)));
        TileRanges {
            both,
            row_step,
            block_step,
            row_warp,
            block_warp,
            quarter,
            lane,
            beside_lane,
            row_tile,
            tile,
            i,
            j,
            step,
            at,
            part,
        }
    }
    /// Returns the row index. A lane's rows follow the fragment's layout if `as_laid_out`,
    /// and are neighbours otherwise.
    fn row_at(&self, g: &mut Graph, counts: &Counts, as_laid_out: bool) -> Id {
        let &Counts {
            of,
            of_product,
            high,
            row_warps,
            tall,
            ..
        } = counts;
        let (lanes, copies) = (along(of.sums.lanes, true), along(of.sums.registers, true));
        let of_warp = of.rows / of_product;
        let of_rows = if as_laid_out {
            [
                (self.quarter, of_warp),
                (self.lane, lanes.row),
                (self.row_tile, of.rows),
                (self.i, copies.row),
            ]
        } else {
            let (lane, row_tile) = (
                (self.lane, copies.count * tall),
                (self.row_tile, copies.count),
            );
            [(self.quarter, of_warp * tall), lane, row_tile, (self.i, 1)]
        };
        let warp = [
            (self.row_warp, high / row_warps * of.rows),
            (self.row_step, tall * of.rows),
        ];
        strided(g, &[&warp[..], &of_rows].concat())
    }
    /// Returns the column index; surplus tiles repeat the last column.
    fn column_at(&self, g: &mut Graph, counts: &Counts, product: &MmaProduct) -> Id {
        let (of_lane, of_tile) = (product.of_lane(), product.of_tile());
        let step = counts.wide * of_tile;
        let warp = (self.block_warp, counts.blocks / counts.column_warps * step);
        let of_tiles = [warp, (self.block_step, step), (self.tile, of_tile)];
        let at = strided(
            g,
            &[&of_tiles[..], &[(self.beside_lane, of_lane), (self.j, 1)]].concat(),
        );
        if product.outputs == counts.blocks * step {
            at
        } else {
            up_to_last(g, at, product.outputs)
        }
    }
    /// Returns the ranges of the nest, outermost first.
    fn closed(&self) -> [Id; 11] {
        let &TileRanges {
            row_step,
            block_step,
            row_warp,
            block_warp,
            quarter,
            ..
        } = self;
        let &TileRanges {
            lane,
            beside_lane,
            row_tile,
            tile,
            i,
            j,
            ..
        } = self;
        [
            row_step,
            block_step,
            row_warp,
            block_warp,
            quarter,
            lane,
            beside_lane,
            row_tile,
            tile,
            i,
            j,
        ]
    }
}

/// Clamps an index to the last element.
fn up_to_last(g: &mut Graph, at: Id, elements: i64) -> Id {
    let last = g.int(elements - 1);
    g.min(at, last)
}

/// Filters out constants: a range of one iteration is a constant.
fn present(g: &Graph, all: impl Iterator<Item = Id>) -> Vec<Id> {
    all.filter(|&r| g[r].op == Op::Range).collect()
}
