//! Nests between two products of several warps (`fragment_tiling.rs`), as the softmax between scores and sums of values: laid out as the sums of the first are, so that
//! each thread reads what it has written itself, and keeps it in registers (`lower/forwarded.rs`).

use crate::fragment::{WARP, along};
use crate::nest::{Nest, Ranges, strided};
use crate::tile::Sums;
use gristmill_uop::fragment::WGMMA_64;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};
use rustc_hash::FxHashMap;

/// A nest's loop over rows, and its loop over columns or those of its sums.
struct Axes {
    row: Id,
    column: Option<Id>,
    /// Of each reduction, its range over columns.
    sums: Vec<(Id, Id)>,
}

impl Axes {
    /// Where the nest has loops over as many rows and columns as the sums have, and no others.
    fn of(g: &Graph, nest: &Nest, plan: &Sums) -> Option<Axes> {
        let [rows, columns] = [plan.rows * WGMMA_64.rows, plan.wide * WGMMA_64.sums.registers[2].column];
        let bound = |r: Id| g.int_value(g[r].src[0]);
        let is_loop = |r: Id, n: i64| g.range_kind(r) == Some(RangeKind::Loop) && bound(r) == Some(n);
        let (&row, others) = nest.closed.split_first()?;
        let column = match others {
            [] => None,
            &[column] if is_loop(column, columns) => Some(column),
            _ => return None,
        };
        let mut sums = Vec::new();
        for n in g.toposort(&[nest.value]).into_iter().filter(|&n| g[n].op == Op::Reduce) {
            let own = |&r: &Id| g.range_kind(r) == Some(RangeKind::Reduce);
            let all: Vec<Id> = g[n].src[1..].iter().copied().filter(own).collect();
            let &[over] = &all[..] else { return None };
            sums.push((n, (bound(over) == Some(columns)).then_some(over)?));
        }
        (is_loop(row, rows) && column.is_some() == sums.is_empty()).then_some(Axes { row, column, sums })
    }
}

/// Can a nest be laid out so?
pub fn fits(g: &Graph, store: Id, plan: &Sums) -> bool {
    Axes::of(g, &Nest::of(g, store), plan).is_some()
}

/// The nest, laid out so, if it can be.
pub fn nest(g: &mut Graph, store: Id, plan: &Sums, ranges: &mut Ranges) -> Option<Id> {
    let mut nest = Nest::of(g, store);
    let Axes { row, column, sums } = Axes::of(g, &nest, plan)?;
    use RangeKind::{Unroll, Upcast, Vector};
    let of = WGMMA_64;
    let [lanes, copies] = [of.sums.lanes, of.sums.registers].map(|d| along(d, true));
    let group = ranges.fixed(g, plan.rows, Vector);
    let quarter = ranges.fixed(g, of.sums.lanes() / WARP, Vector);
    let (lane, part) =
        (ranges.fixed(g, lanes.count, Vector), ranges.fixed(g, along(of.sums.lanes, false).count, Vector));
    let of_columns = if sums.is_empty() { Upcast } else { Unroll };
    let (tile, i) = (ranges.fixed(g, plan.wide, of_columns), ranges.fixed(g, copies.count, Upcast));
    let j = ranges.fixed(g, of.sums.registers[0].count, of_columns);
    let of_warp = of.rows * WARP / of.sums.lanes();
    let row_at = strided(g, &[(group, of.rows), (quarter, of_warp), (lane, lanes.row), (i, copies.row)]);
    let steps = [of.sums.registers[2].column, along(of.sums.lanes, false).column, of.sums.registers[0].column];
    let column_at = strided(g, &[(tile, steps[0]), (part, steps[1]), (j, steps[2])]);
    let present = |g: &Graph, all: &[Id]| all.iter().copied().filter(|&r| g[r].op == Op::Range).collect::<Vec<Id>>();
    let mut map = FxHashMap::from_iter([(row, row_at)]);
    map.extend(column.map(|column| (column, column_at)));
    for (n, over) in sums {
        let Arg::Reduce(op, _) = g[n].arg else { continue };
        let mut of_sum = map.clone();
        of_sum.insert(over, column_at);
        let value = g.substitute(g[n].src[0], &mut of_sum);
        let mut all: Vec<Id> = g[n].src[1..].iter().copied().filter(|&r| r != over).collect();
        all.extend(present(g, &[tile, part, j]));
        let sum = g.reduce_ranges(value, &all, op);
        map.insert(n, sum);
    }
    nest.offset = g.substitute(nest.offset, &mut map.clone());
    nest.value = g.substitute(nest.value, &mut map);
    nest.closed = match column {
        Some(_) => present(g, &[group, quarter, lane, part, tile, i, j]),
        None => present(g, &[group, quarter, lane, i]),
    };
    Some(nest.store(g))
}
