//! Stages that products of several warps read as their columns lie as `uop/src/fragment.rs` (`Shared`) says. Elsewhere a stage has rows, one for each column. Whoever fills it writes the same elements to other places.

use crate::ir::mma::fragment::{MmaSum, at_swizzle, swizzled};
use crate::ir::nest::{Nest, replaced, strided};
use crate::plan::{NestPlan, Warps};
use gristmill_uop::fragment::{self, Fragment, MMA_F16, OF_LINE, Shared, UNIT};
use gristmill_uop::machine::Machine;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// A stage whose elements lie in units.
struct Units {
    stage: Id,
    /// Lines of units beside one another: of a product's rows, of its columns, or of its terms.
    lines: i64,
    /// Elements of a row as it was, which lie in a line's units.
    row: i64,
    /// Those of them that are there: others keep rows apart.
    used: i64,
}

impl Units {
    /// Units of as many lines as a product has.
    fn of_block(&self) -> i64 {
        fragment::units(self.used, self.lines)
    }
    /// Where the element lies that was at an offset.
    fn at(&self, g: &mut Graph, offset: Id) -> Id {
        let [row, lines, eight, four] = [self.row, self.lines, UNIT, OF_LINE].map(|n| g.int(n));
        let (line, along) = (g.idiv(offset, row), g.modulo(offset, row));
        let (block, line) = (g.idiv(line, lines), g.modulo(line, lines));
        let (unit, along) = (g.idiv(along, eight), g.modulo(along, eight));
        let (number, unit) = (g.idiv(unit, four), g.modulo(unit, four));
        let unit = swizzled(g, unit, line);
        let of_number = OF_LINE * self.lines;
        let units = [(block, self.of_block()), (number, of_number), (line, OF_LINE), (unit, 1)];
        let elements = units.map(|(index, units)| (index, units * UNIT));
        strided(g, &[&elements[..], &[(along, 1)]].concat())
    }
}

/// Nests whose stages lie as products of several warps read them, where plans have such.
pub fn units(g: &mut Graph, nests: Vec<Id>, plans: &[NestPlan], machine: &Machine) -> Vec<Id> {
    let mut all: FxHashMap<Id, Units> = FxHashMap::default();
    let read: Vec<Read> =
        nests.iter().zip(plans).flat_map(|(&nest, plan)| read(g, &nests, nest, plan, machine)).collect();
    for Read { buffer, lines, row } in read {
        if row < UNIT || all.contains_key(&buffer) {
            continue;
        }
        let units = Units { stage: buffer, lines, row, used: used(g, &nests, buffer, row) };
        let blocks = (g.max_of(g[buffer].src[0]) / row + lines - 1) / lines;
        let elements = g.int(blocks * units.of_block() * UNIT);
        let Arg::Int(number) = g[buffer].arg else { continue };
        let (dtype, arg) = (g[buffer].dtype, Arg::Int(at_swizzle(number)));
        let stage = g.intern(Node { op: Op::Local, dtype, src: smallvec![elements], arg });
        all.insert(buffer, Units { stage, ..units });
    }
    if all.is_empty() {
        return nests;
    }
    let moved = |nest: Id| {
        let mut n = Nest::from_store(g, nest);
        n.value = replaced(g, n.value, |g, id| {
            let units = all.get(g[id].src.first()?).filter(|_| g[id].op == Op::Load)?;
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

/// Elements of a stage's rows that nests write.
fn used(g: &mut Graph, nests: &[Id], stage: Id, row: i64) -> i64 {
    let offsets: Vec<Id> = nests.iter().filter(|&&n| g[n].src[0] == stage).map(|&n| g[n].src[1]).collect();
    let length = g.int(row);
    let last = |offset: Id| {
        let along = g.modulo(offset, length);
        g.bounds(along).map_or(row - 1, |b| b.1.min(row - 1))
    };
    offsets.into_iter().map(last).max().map_or(row, |last| last + 1)
}

/// A stage that a product of several warps reads: lines of its units, and elements from one to the next.
struct Read {
    buffer: Id,
    lines: i64,
    row: i64,
}

/// What a nest's product of several warps, if that is its plan, reads of stages: its columns; and its rows, if the stage is filled once for a loop that nests share. What is filled in
/// each iteration threads may have in registers.
fn read(g: &Graph, nests: &[Id], nest: Id, plan: &NestPlan, machine: &Machine) -> Vec<Read> {
    let NestPlan::Warps(Warps { groups: true, wide, .. }) = plan else { return vec![] };
    if !machine.fragments.iter().any(Fragment::is_of_group) {
        return vec![];
    }
    let Some(product) = Product::from_nest(g, nest, wide * MMA_F16.columns) else { return vec![] };
    let Product { value, sum, column, .. } = &product;
    let side = |load: Id| {
        let buffer = *g[load].src.first().filter(|&&s| g[load].op == Op::Load && g[s].op == Op::Local)?;
        if g.free_ranges(load).contains(column) {
            return product.columns(g, load, buffer);
        }
        let fills = |n: &Id| g[*n].src[0] == buffer;
        let anew = nests.iter().copied().filter(fills).any(|n| has_shared_loop(g, g[n].src[2]));
        if anew || !has_shared_loop(g, *value) {
            return None;
        }
        product.rows(g, load, buffer)
    };
    [sum.rows, sum.columns].into_iter().filter_map(side).collect()
}

/// Is a value of an iteration, or a sum over the iterations, of a loop that nests share?
fn has_shared_loop(g: &Graph, value: Id) -> bool {
    g.toposort(&[value]).into_iter().any(|n| g.range_kind(n) == Some(RangeKind::Fused))
}

/// A nest's sum of products, of which several warps have so many columns.
struct Product {
    value: Id,
    sum: MmaSum,
    /// The range of the columns that a thread has.
    column: Id,
    /// The range of the terms that a product has.
    term: Id,
    /// Columns of a product.
    wide: i64,
}

impl Product {
    fn from_nest(g: &Graph, nest: Id, wide: i64) -> Option<Product> {
        let Nest { value, closed, .. } = Nest::from_store(g, nest);
        let (id, sum) = g.toposort(&[value]).into_iter().find_map(|n| Some((n, MmaSum::from_node(g, n)?)))?;
        let column = closed.into_iter().rfind(|&r| g.range_kind(r) == Some(RangeKind::Upcast))?;
        let term = g[id].src[1..].iter().copied().find(|&r| g.range_kind(r) == Some(RangeKind::Unroll))?;
        Some(Product { value, sum, column, term, wide })
    }
    /// Columns in a stage: lines along the terms, or along the columns.
    fn columns(&self, g: &Graph, load: Id, buffer: Id) -> Option<Read> {
        let at = g.linear(g[load].src[1]);
        let (shared, along) = match at.coefficient(self.column) {
            1 => (Shared::Transposed, self.term),
            _ => (Shared::Columns, self.column),
        };
        let of = Fragment::of_stage(self.sum.operand, self.wide, shared)?;
        Some(Read { buffer, lines: of.lines(), row: at.coefficient(along) })
    }
    /// Rows in a stage, if their terms follow one another there.
    fn rows(&self, g: &Graph, load: Id, buffer: Id) -> Option<Read> {
        let at = g.linear(g[load].src[1]);
        let of = Fragment::of_stage(self.sum.operand, self.wide, Shared::Columns)?;
        let row = at.terms.iter().filter(|t| t.0 != self.term).map(|t| t.1).min()?;
        (at.coefficient(self.term) == 1).then_some(Read { buffer, lines: of.rows, row })
    }
}
