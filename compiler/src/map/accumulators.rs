//! Maps nests between two multi-warp MMA products (`fragment_tiling.rs`) to the accumulator layout
//! of the first.
//!
//! An example is the softmax between scores and values. Each thread then reads only what it has
//! written itself, and keeps it in registers (`lower/memory/store_forwarding.rs`).

use crate::ir::nest::{Nest, Ranges, strided};
use crate::plan::Accumulators;
use gristmill_uop::fragment::{Digit, Fragment, MMA_F16, Shared};
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, Scalar};
use rustc_hash::FxHashMap;

/// Returns the MMA fragment with the accumulators of a plan.
fn fragment(plan: &Accumulators) -> Option<&'static Fragment> {
    Fragment::of_stage(Scalar::F16, plan.wide * MMA_F16.columns, Shared::Columns)
}

/// A nest's loop over rows, and its loop over columns or those of its reductions.
struct Axes {
    row: Id,
    column: Option<Id>,
    /// Each reduction, with its range over columns.
    sums: Vec<(Id, Id)>,
}

impl Axes {
    /// Returns the loops of a nest with as many rows and columns as there are accumulators and no
    /// others; `None` for other nests.
    fn from_nest(g: &Graph, nest: &Nest, plan: &Accumulators) -> Option<Axes> {
        let of = fragment(plan)?;
        let has = |r: Id, kind: RangeKind, n: i64| {
            g.range_kind(r) == Some(kind) && g.int_value(g[r].src[0]) == Some(n)
        };
        let (&row, others) = nest.closed.split_first()?;
        let column = match others {
            [] => None,
            &[column] if has(column, RangeKind::Loop, of.columns) => Some(column),
            _ => return None,
        };
        let mut sums = Vec::new();
        for n in g
            .toposort(&[nest.value])
            .into_iter()
            .filter(|&n| g[n].op == Op::Reduce)
        {
            let own = |&r: &Id| g.range_kind(r) == Some(RangeKind::Reduce);
            let all: Vec<Id> = g[n].src[1..].iter().copied().filter(own).collect();
            let &[over] = &all[..] else { return None };
            sums.push((n, has(over, RangeKind::Reduce, of.columns).then_some(over)?));
        }
        let fits =
            has(row, RangeKind::Loop, plan.rows * of.rows) && column.is_some() == sums.is_empty();
        fits.then_some(Axes { row, column, sums })
    }
}

/// Returns whether a nest can take the accumulator layout.
pub fn fits(g: &Graph, store: Id, plan: &Accumulators) -> bool {
    Axes::from_nest(g, &Nest::from_store(g, store), plan).is_some()
}

/// Rewrites a nest to the accumulator layout, if it fits. The digits of an accumulator's
/// number become threads if they are a lane's, and copies or terms of a sum over columns if
/// they are a register's.
pub fn nest(g: &mut Graph, store: Id, plan: &Accumulators, ranges: &mut Ranges) -> Option<Id> {
    let mut nest = Nest::from_store(g, store);
    let Axes { row, column, sums } = Axes::from_nest(g, &nest, plan)?;
    let of = fragment(plan)?;
    let group = Digit {
        count: plan.rows,
        row: of.rows,
        column: 0,
    };
    let mut digits: Vec<(Digit, Id)> = Vec::new();
    for &digit in [group].iter().chain(of.sums.lanes.iter().rev()) {
        digits.push((digit, ranges.fixed(g, digit.count, RangeKind::Vector)));
    }
    for &digit in of.sums.registers.iter().rev() {
        let is_term = digit.column != 0 && column.is_none();
        let kind = if is_term {
            RangeKind::Unroll
        } else {
            RangeKind::Upcast
        };
        digits.push((digit, ranges.fixed(g, digit.count, kind)));
    }
    let along = |step: fn(&Digit) -> i64| -> Vec<(Id, i64)> {
        digits
            .iter()
            .filter(|(d, _)| step(d) != 0)
            .map(|(d, r)| (*r, step(d)))
            .collect()
    };
    let (rows, columns) = (along(|d| d.row), along(|d| d.column));
    let (row_at, column_at) = (strided(g, &rows), strided(g, &columns));
    let present = |g: &Graph, all: Vec<Id>| {
        all.into_iter()
            .filter(|&r| g[r].op == Op::Range)
            .collect::<Vec<Id>>()
    };
    let mut map = FxHashMap::from_iter([(row, row_at)]);
    map.extend(column.map(|column| (column, column_at)));
    for (n, over) in sums {
        let Arg::Reduce(op, _) = g[n].arg else {
            continue;
        };
        let mut of_sum = map.clone();
        of_sum.insert(over, column_at);
        let value = g.substitute(g[n].src[0], &mut of_sum);
        let mut all: Vec<Id> = g[n].src[1..]
            .iter()
            .copied()
            .filter(|&r| r != over)
            .collect();
        all.extend(present(g, columns.iter().map(|c| c.0).collect()));
        let sum = g.reduce_ranges(value, &all, op);
        map.insert(n, sum);
    }
    nest.offset = g.substitute(nest.offset, &mut map.clone());
    nest.value = g.substitute(nest.value, &mut map);
    let closed = if column.is_some() {
        digits.iter().map(|d| d.1).collect()
    } else {
        rows.iter().map(|r| r.0).collect()
    };
    nest.closed = present(g, closed);
    Some(nest.store(g))
}
