//! Gives stages that multi-warp MMA products read as columns the unit layout of
//! `uop/src/fragment.rs` (`Shared`).
//!
//! Other stages are row-major, with one row per column of the product. Nests that fill such a stage
//! only change their offsets.

use crate::ir::mma::fragment::{MmaSum, at_swizzle, swizzled};
use crate::ir::nest::{Nest, replaced, strided};
use crate::plan::{NestPlan, Warps};
use gristmill_uop::fragment::{self, Fragment, MMA_F16, OF_LINE, Shared, UNIT};
use gristmill_uop::machine::Machine;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// A stage in unit layout.
struct Units {
    stage: Id,
    /// Lines of units per block: the rows, columns or terms of a product.
    lines: i64,
    /// Elements per row in the original layout; a row becomes the units of a line.
    row: i64,
    /// Elements of a row in use; the rest is padding.
    used: i64,
}

impl Units {
    /// Returns the units of a block, which has as many lines as a product.
    fn of_block(&self) -> i64 {
        fragment::units(self.used, self.lines)
    }
    /// Returns the new offset of the element at an original offset.
    fn at(&self, g: &mut Graph, offset: Id) -> Id {
        let [row, lines, eight, four] = [self.row, self.lines, UNIT, OF_LINE].map(|n| g.int(n));
        let (line, along) = (g.idiv(offset, row), g.modulo(offset, row));
        let (block, line) = (g.idiv(line, lines), g.modulo(line, lines));
        let (unit, along) = (g.idiv(along, eight), g.modulo(along, eight));
        let (number, unit) = (g.idiv(unit, four), g.modulo(unit, four));
        let unit = swizzled(g, unit, line);
        let of_number = OF_LINE * self.lines;
        let units = [
            (block, self.of_block()),
            (number, of_number),
            (line, OF_LINE),
            (unit, 1),
        ];
        let elements = units.map(|(index, units)| (index, units * UNIT));
        strided(g, &[&elements[..], &[(along, 1)]].concat())
    }
}

/// Rewrites nests so that stages of multi-warp MMA products have the unit layout, where
/// plans use such products.
pub fn units(g: &mut Graph, nests: Vec<Id>, plans: &[NestPlan], machine: &Machine) -> Vec<Id> {
    let mut all: FxHashMap<Id, Units> = FxHashMap::default();
    let read: Vec<Read> = nests
        .iter()
        .zip(plans)
        .flat_map(|(&nest, plan)| read(g, &nests, nest, plan, machine))
        .collect();
    for Read { buffer, lines, row } in read {
        if row < UNIT || all.contains_key(&buffer) {
            continue;
        }
        let units = Units {
            stage: buffer,
            lines,
            row,
            used: used(g, &nests, buffer, row),
        };
        let blocks = (g.max_of(g[buffer].src[0]) / row + lines - 1) / lines;
        let elements = g.int(blocks * units.of_block() * UNIT);
        let Arg::Int(number) = g[buffer].arg else {
            continue;
        };
        let (dtype, arg) = (g[buffer].dtype, Arg::Int(at_swizzle(number)));
        let stage = g.intern(Node {
            op: Op::Local,
            dtype,
            src: smallvec![elements],
            arg,
        });
        all.insert(buffer, Units { stage, ..units });
    }
    if all.is_empty() {
        return nests;
    }
    let moved = |nest: Id| {
        let mut n = Nest::from_store(g, nest);
        n.value = replaced(g, n.value, |g, id| {
            let units = all
                .get(g[id].src.first()?)
                .filter(|_| g[id].op == Op::Load)?;
            let (at, dtype) = (units.at(g, g[id].src[1]), g[id].dtype);
            Some(g.load(units.stage, at, dtype))
        });
        if let Some(units) = all.get(&n.buffer) {
            n.buffer = units.stage;
            n.offset = units.at(g, n.offset);
        }
        n.store(g)
    };
    nests.into_iter().map(moved).collect()
}

/// Returns how many elements of a stage's rows are written.
fn used(g: &mut Graph, nests: &[Id], stage: Id, row: i64) -> i64 {
    let offsets: Vec<Id> = nests
        .iter()
        .filter(|&&n| g[n].src[0] == stage)
        .map(|&n| g[n].src[1])
        .collect();
    let length = g.int(row);
    let last = |offset: Id| {
        let along = g.modulo(offset, length);
        g.bounds(along).map_or(row - 1, |b| b.1.min(row - 1))
    };
    offsets
        .into_iter()
        .map(last)
        .max()
        .map_or(row, |last| last + 1)
}

/// A stage that a multi-warp MMA product reads: lines per block, and elements between lines.
struct Read {
    buffer: Id,
    lines: i64,
    row: i64,
}

/// Returns the stages that a nest's multi-warp product reads directly: its columns, and its
/// rows if their stage is filled once for a shared loop. Rows that are refilled in each
/// iteration may be in registers.
fn read(g: &Graph, nests: &[Id], nest: Id, plan: &NestPlan, machine: &Machine) -> Vec<Read> {
    let NestPlan::Warps(Warps {
        groups: true, wide, ..
    }) = plan
    else {
        return vec![];
    };
    if !machine.fragments.iter().any(Fragment::is_of_group) {
        return vec![];
    }
    let Some(product) = Product::from_nest(g, nest, wide * MMA_F16.columns) else {
        return vec![];
    };
    let Product {
        value, sum, column, ..
    } = &product;
    let side = |load: Id| {
        let buffer = *g[load]
            .src
            .first()
            .filter(|&&s| g[load].op == Op::Load && g[s].op == Op::Local)?;
        if g.free_ranges(load).contains(column) {
            return product.columns(g, load, buffer);
        }
        let fills = |n: &Id| g[*n].src[0] == buffer;
        let anew = nests
            .iter()
            .copied()
            .filter(fills)
            .any(|n| has_shared_loop(g, g[n].src[2]));
        if anew || !has_shared_loop(g, *value) {
            return None;
        }
        product.rows(g, load, buffer)
    };
    [sum.rows, sum.columns]
        .into_iter()
        .filter_map(side)
        .collect()
}

/// Returns whether a value depends on a loop that nests share, or sums over it.
fn has_shared_loop(g: &Graph, value: Id) -> bool {
    g.toposort(&[value])
        .into_iter()
        .any(|n| g.range_kind(n) == Some(RangeKind::Fused))
}

/// A nest's reduction by a multi-warp MMA product.
struct Product {
    value: Id,
    sum: MmaSum,
    /// Range of a thread's columns.
    column: Id,
    /// Range of a product's terms.
    term: Id,
    wide: i64,
}

impl Product {
    fn from_nest(g: &Graph, nest: Id, wide: i64) -> Option<Product> {
        let Nest { value, closed, .. } = Nest::from_store(g, nest);
        let (id, sum) = g
            .toposort(&[value])
            .into_iter()
            .find_map(|n| Some((n, MmaSum::from_node(g, n)?)))?;
        let column = closed
            .into_iter()
            .rfind(|&r| g.range_kind(r) == Some(RangeKind::Upcast))?;
        let term = g[id].src[1..]
            .iter()
            .copied()
            .find(|&r| g.range_kind(r) == Some(RangeKind::Unroll))?;
        Some(Product {
            value,
            sum,
            column,
            term,
            wide,
        })
    }
    /// Returns the layout of columns in a stage: lines along the terms, or along the columns.
    fn columns(&self, g: &Graph, load: Id, buffer: Id) -> Option<Read> {
        let at = g.linear(g[load].src[1]);
        let (shared, along) = match at.coefficient(self.column) {
            1 => (Shared::Transposed, self.term),
            _ => (Shared::Columns, self.column),
        };
        let of = Fragment::of_stage(self.sum.operand, self.wide, shared)?;
        Some(Read {
            buffer,
            lines: of.lines(),
            row: at.coefficient(along),
        })
    }
    /// Returns the layout of rows in a stage, if their terms are contiguous.
    fn rows(&self, g: &Graph, load: Id, buffer: Id) -> Option<Read> {
        let at = g.linear(g[load].src[1]);
        let of = Fragment::of_stage(self.sum.operand, self.wide, Shared::Columns)?;
        let row = at
            .terms
            .iter()
            .filter(|t| t.0 != self.term)
            .map(|t| t.1)
            .min()?;
        (at.coefficient(self.term) == 1).then_some(Read {
            buffer,
            lines: of.rows,
            row,
        })
    }
}
