//! A nest that sums products of halves, laid out over warps as their matrix product wants it (`lower/mma_f16.rs`), in the tiles that a plan says. The rows
//! of a lane are neighbours: where they are contiguous, one load brings them all.

use crate::fragment::along;
use crate::nest::{Nest, Ranges, divisor, strided};
use crate::tile::Warps;
use crate::tile::product::Product;
use gristmill_uop::fragment::{Fragment, Shared};
use gristmill_uop::machine::Machine;
use gristmill_uop::{Graph, Id, Op, RangeKind, ReduceOp};
use rustc_hash::FxHashMap;

/// Do elements of `load` that follow one another in memory differ by one in range `r`?
fn contiguous(g: &mut Graph, load: Id, r: Id) -> bool {
    let at = g.linear(g[load].src[1]);
    at.terms.iter().any(|&(t, distance)| t == r && distance == 1)
}

/// The nest of `store` as the plan says, if it is such a nest; `ranges` makes its ranges. What does not divide counts as the next smaller number that does.
pub fn nest(g: &mut Graph, store: Id, plan: &Warps, machine: &Machine, ranges: &mut Ranges) -> Option<Id> {
    let product = if plan.groups { Product::of_stages(g, store, machine)? } else { Product::of(g, store, machine)? };
    let of = match plan.groups {
        true => Fragment::of_stage(product.sum.operand, plan.wide * product.of.columns, Shared::Columns)?,
        false => product.of,
    };
    let high = product.high * product.of.rows / of.rows;
    let (of_lane, of_tile, apart) = (product.of_lane(), product.of_tile(), plan.apart);
    let blocks = (product.tiles_beside() + plan.wide - 1) / plan.wide;
    let (rows_apart, columns_apart, wide) = (divisor(high, plan.rows), divisor(blocks, plan.columns), plan.wide);
    let tall = divisor(high / rows_apart, plan.tall);
    let Product {
        nest: Nest { buffer, offset, value, .. },
        id,
        sum,
        row,
        column,
        outputs,
        both,
        term,
        terms,
        alone,
        ..
    } = product;
    let mut range = |g: &mut Graph, n: i64, kind: RangeKind| ranges.fixed(g, n, kind);
    use RangeKind::{Loop, Reduce, Unroll, Upcast, Vector};
    let both_at = both.map(|r| (r, range(g, g.max_of(g[r].src[0]), if apart { Vector } else { Loop })));
    let (row_step, block_step) = (range(g, high / rows_apart / tall, Loop), range(g, blocks / columns_apart, Loop));
    let (row_warp, block_warp) = (range(g, rows_apart, Vector), range(g, columns_apart, Vector));
    let (lanes, copies) = (along(of.sums.lanes, true), along(of.sums.registers, true));
    // Of a product of several warps each has rows of its own.
    let quarter = range(g, of.sums.lanes() / machine.subgroup, Vector);
    let of_warp = of.rows * machine.subgroup / of.sums.lanes();
    let (lane, beside_lane) = (range(g, lanes.count, Vector), range(g, along(of.sums.lanes, false).count, Vector));
    let (row_tile, tile, i) = (range(g, tall, Upcast), range(g, wide, Upcast), range(g, copies.count, Upcast));
    let j = range(g, of_lane, Upcast);
    // What several warps multiply waits in no register.
    let at_once = match terms % (2 * of.terms) {
        _ if plan.groups => terms,
        0 => 2 * of.terms,
        _ => of.terms,
    };
    let (step, at) = (range(g, terms / at_once, Reduce), range(g, at_once, Unroll));
    let part = sum.part.map(|old| (old, range(g, 2, Unroll)));
    // Lanes read rows beside one another without a conflict only if these follow one another.
    let of_rows = if sum.staged_rows(g) && !contiguous(g, sum.rows, row) {
        [(quarter, of_warp), (lane, lanes.row), (row_tile, of.rows), (i, copies.row)]
    } else {
        [(quarter, of_warp * tall), (lane, copies.count * tall), (row_tile, copies.count), (i, 1)]
    };
    let warp = [(row_warp, high / rows_apart * of.rows), (row_step, tall * of.rows)];
    let row_at = strided(g, &[&warp[..], &of_rows].concat());
    let block = blocks / columns_apart * wide * of_tile;
    let parts = [(block_warp, block), (block_step, wide * of_tile), (tile, of_tile), (beside_lane, of_lane), (j, 1)];
    let column_at = strided(g, &parts);
    let column_at = if outputs == blocks * wide * of_tile { column_at } else { up_to_last(g, column_at, outputs) };
    let term_at = strided(g, &[(step, at_once), (at, 1)]);
    let mut map = FxHashMap::from_iter([(row, row_at), (column, column_at), (term, term_at)]);
    map.extend(both_at);
    map.extend(part);
    let offset = g.substitute(offset, &mut map);
    let product = g.substitute(g[id].src[0], &mut map);
    let over = present(g, alone.into_iter().chain([step, at]).chain(part.map(|p| p.1)));
    map.insert(id, g.reduce_ranges(product, &over, ReduceOp::Add));
    let value = g.substitute(value, &mut map);
    let tiles = [row_step, block_step, row_warp, block_warp, quarter, lane, beside_lane, row_tile, tile, i, j];
    let closed = present(g, both_at.map(|b| b.1).into_iter().chain(tiles));
    Some(Nest { buffer, offset, value, adds: false, closed }.store(g))
}

/// An index of so many elements: surplus ones are the last.
fn up_to_last(g: &mut Graph, at: Id, elements: i64) -> Id {
    let last = g.int(elements - 1);
    g.min(at, last)
}

/// Those of these that are ranges: a single iteration has none.
fn present(g: &Graph, all: impl Iterator<Item = Id>) -> Vec<Id> {
    all.filter(|&r| g[r].op == Op::Range).collect()
}
