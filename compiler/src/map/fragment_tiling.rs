//! Optimise for a GPU: a nest that sums products of halves, laid out over warps as their matrix product wants it (`lower/mma_f16.rs`).
//!
//! Such a nest has outputs of *rows*, on which one operand depends, and *columns*, on which the other does; the latter's values are f32 in two parts
//! (`decompose/f16_split.rs`), over which the sum goes as well, or halves. A tile is 16 rows by 4 outputs of two parts or 8 of one; a warp keeps as many tiles as registers have room for, so that
//! each operand is read once for several products. The rows of a lane are neighbours: where they are contiguous, one load brings them all.

use crate::fragment::{ENOUGH, LANES, OUTPUTS, ROWS, Sum, TERMS, WARP};
use crate::nest::{Nest, Ranges, power_divisor, strided};
use gristmill_uop::{Graph, Id, Op, RangeKind, ReduceOp};
use rustc_hash::FxHashMap;

/// Tiles of a warp, of four registers each.
const TILES: i64 = 12;
/// Tiles beside one another.
const BESIDE: i64 = 6;

/// Do elements of `load` that follow one another in memory differ by one in range `r`?
fn contiguous(g: &mut Graph, load: Id, r: Id) -> bool {
    let at = g.linear(g[load].src[1]);
    at.terms.iter().any(|&(t, distance)| t == r && distance == 1)
}

/// A nest that is one sum of products of halves over whole tiles.
struct Product {
    nest: Nest,
    /// The reduction.
    id: Id,
    sum: Sum,
    /// The range of rows, tiles of them, and the range of columns, with the outputs beside one another.
    row: Id,
    high: i64,
    column: Id,
    outputs: i64,
    /// A range on which both operands depend, or neither.
    both: Option<Id>,
    /// The range of the terms.
    term: Id,
    terms: i64,
    /// Ranges of the sum besides: on which columns do not depend.
    alone: Vec<Id>,
}

impl Product {
    fn of(g: &Graph, store: Id) -> Option<Product> {
        let nest = Nest::of(g, store);
        let sums: Vec<Id> = g.toposort(&[nest.value]).into_iter().filter(|&n| g[n].op == Op::Reduce).collect();
        let &[id] = &sums[..] else { return None };
        let sum = Sum::of(g, id)?;
        let bound = |r: Id| g.int_value(g[r].src[0]);
        let depends = |x: Id, r: &Id| g.free_ranges(x).contains(r);
        let others = g[id].src[1..].iter().copied().filter(|&r| Some(r) != sum.part);
        let (common, alone): (Vec<Id>, Vec<Id>) = others.partition(|r| depends(sum.columns, r));
        let &[term] = &common[..] else { return None };
        let terms = bound(term).filter(|n| n % TERMS == 0)?;
        let (rows, rest): (Vec<Id>, Vec<Id>) =
            nest.closed.iter().partition(|r| depends(sum.rows, r) && !depends(sum.columns, r));
        let (columns, both): (Vec<Id>, Vec<Id>) =
            rest.iter().partition(|r| depends(sum.columns, r) && !depends(sum.rows, r));
        let (&[row], &[column]) = (&rows[..], &columns[..]) else { return None };
        let loops = |r: &Id| g.range_kind(*r) == Some(RangeKind::Loop) && bound(*r).is_some();
        let high = bound(row).filter(|n| n % ROWS == 0)? / ROWS;
        let outputs = bound(column).filter(|&n| n >= ENOUGH)?;
        if !nest.closed.iter().all(loops) || both.len() > 1 || !depends(sum.rows, &term) {
            return None;
        }
        let both = both.first().copied();
        Some(Product { nest, id, sum, row, high, column, outputs, both, term, terms, alone })
    }
    /// How so many warps share it: first what shares nothing, then rows, then columns.
    fn shared(&self, g: &Graph, mut warps: i64) -> Shares {
        let apart = self.both.map(|r| g.max_of(g[r].src[0])).filter(|n| warps % n == 0);
        warps /= apart.unwrap_or(1);
        let rows = power_divisor(self.high, warps);
        let of_lane = if self.sum.part.is_some() { 1 } else { 2 };
        let of_tile = OUTPUTS * of_lane;
        let beside = (self.outputs + of_tile - 1) / of_tile;
        let blocks = (beside + BESIDE - 1) / BESIDE;
        let columns = power_divisor(blocks, warps / rows);
        let wide = (beside + blocks - 1) / blocks;
        // Of rows in a stage a lane takes as many as one store of 16 bytes has room for.
        let staged = self.sum.staged_rows(g);
        let most = if staged { 8 / g.scalar(self.nest.value).bytes() as i64 } else { TILES / wide };
        let tall = power_divisor(self.high / rows, most.min(TILES / wide));
        Shares { apart: apart.is_some(), rows, columns, of_lane, of_tile, blocks, wide, tall }
    }
}

/// How warps share rows and columns.
struct Shares {
    /// Has each warp an element of the range that both operands depend on?
    apart: bool,
    /// Warps side by side along rows, and along columns.
    rows: i64,
    columns: i64,
    /// Outputs of a lane, and of a tile.
    of_lane: i64,
    of_tile: i64,
    /// Parts of the columns, one after the other.
    blocks: i64,
    /// Tiles of a warp beside one another, and above one another.
    wide: i64,
    tall: i64,
}

/// The nest of `store` for so many threads, if it is such a nest; `ranges` makes its ranges.
pub fn nest(g: &mut Graph, store: Id, threads: i64, ranges: &mut Ranges) -> Option<Id> {
    let product = Product::of(g, store).filter(|_| threads % WARP == 0)?;
    let shares = product.shared(g, threads / WARP);
    let Product {
        nest: Nest { buffer, offset, value, .. },
        id,
        sum,
        row,
        high,
        column,
        outputs,
        both,
        term,
        terms,
        alone,
    } = product;
    let Shares { apart, rows: rows_apart, columns: columns_apart, of_lane, of_tile, blocks, wide, tall } = shares;
    let mut range = |g: &mut Graph, n: i64, kind: RangeKind| ranges.fixed(g, n, kind);
    use RangeKind::{Loop, Reduce, Unroll, Upcast, Vector};
    let both_at = both.map(|r| (r, range(g, g.max_of(g[r].src[0]), if apart { Vector } else { Loop })));
    let (row_step, block_step) = (range(g, high / rows_apart / tall, Loop), range(g, blocks / columns_apart, Loop));
    let (row_warp, block_warp) = (range(g, rows_apart, Vector), range(g, columns_apart, Vector));
    let (lane, beside_lane) = (range(g, LANES, Vector), range(g, OUTPUTS, Vector));
    let (row_tile, tile, i) = (range(g, tall, Upcast), range(g, wide, Upcast), range(g, 2, Upcast));
    let j = range(g, of_lane, Upcast);
    let at_once = if terms % (2 * TERMS) == 0 { 2 * TERMS } else { TERMS };
    let (step, at) = (range(g, terms / at_once, Reduce), range(g, at_once, Unroll));
    let part = sum.part.map(|old| (old, range(g, 2, Unroll)));
    // Lanes read rows beside one another without a conflict only if these follow one another.
    let of_rows = if sum.staged_rows(g) && !contiguous(g, sum.rows, row) {
        [(lane, 1), (row_tile, ROWS), (i, LANES)]
    } else {
        [(lane, 2 * tall), (row_tile, 2), (i, 1)]
    };
    let warp = [(row_warp, high / rows_apart * ROWS), (row_step, tall * ROWS)];
    let row_at = strided(g, &[&warp[..], &of_rows].concat());
    let block = blocks / columns_apart * wide * of_tile;
    let parts = [(block_warp, block), (block_step, wide * of_tile), (tile, of_tile), (beside_lane, of_lane), (j, 1)];
    let mut column_at = strided(g, &parts);
    if outputs != blocks * wide * of_tile {
        let last = g.int(outputs - 1);
        column_at = g.min(column_at, last);
    }
    let term_at = strided(g, &[(step, at_once), (at, 1)]);
    let mut map = FxHashMap::from_iter([(row, row_at), (column, column_at), (term, term_at)]);
    map.extend(both_at);
    map.extend(part);
    let offset = g.substitute(offset, &mut map);
    let product = g.substitute(g[id].src[0], &mut map);
    let is_range = |g: &Graph, r: &Id| g[*r].op == Op::Range;
    let over: Vec<Id> =
        alone.into_iter().chain([step, at]).chain(part.map(|p| p.1)).filter(|r| is_range(g, r)).collect();
    map.insert(id, g.reduce_ranges(product, &over, ReduceOp::Add));
    let value = g.substitute(value, &mut map);
    let order = both_at.map(|b| b.1).into_iter();
    let order = order.chain([row_step, block_step, row_warp, block_warp, lane, beside_lane, row_tile, tile, i, j]);
    let order: Vec<Id> = order.filter(|r| is_range(g, r)).collect();
    Some(Nest { buffer, offset, value, closed: order }.store(g))
}
