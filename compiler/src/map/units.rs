//! Stages that products of several warps read as their columns (`uop/src/fragment.rs`, `unit`): eight terms of a column are a unit of 16 bytes, and those of eight columns follow one
//! another. Elsewhere a stage has rows, one for each column. Whoever fills it writes the same elements to other places.

use crate::fragment::Sum;
use crate::nest::{Nest, replaced};
use crate::tile::{NestPlan, Warps};
use gristmill_uop::fragment::{Fragment, MMA_F16, UNIT};
use gristmill_uop::machine::Machine;
use gristmill_uop::{Graph, Id, Node, Op, RangeKind};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// A stage whose elements lie in units.
struct Units {
    stage: Id,
    of: &'static Fragment,
    /// Elements of a row as it was: of a column, or of a term.
    row: i64,
}

impl Units {
    /// Units of so many columns, or of so many terms, as a product has.
    fn of_block(&self) -> i64 {
        let row = (self.row + UNIT - 1) / UNIT * UNIT;
        if self.of.transposed { self.of.place(0, row)[0] } else { self.of.place(row, 0)[0] }
    }
    /// Rows of a block.
    fn rows(&self) -> i64 {
        if self.of.transposed { self.of.terms } else { self.of.columns }
    }
    /// Where the element lies that was at an offset.
    fn at(&self, g: &mut Graph, offset: Id) -> Id {
        let [row, rows, eight] = [self.row, self.rows(), UNIT].map(|n| g.int(n));
        let (line, along) = (g.idiv(offset, row), g.modulo(offset, row));
        let (block, line) = (g.idiv(line, rows), g.modulo(line, rows));
        let (number, along) = (g.idiv(along, eight), g.modulo(along, eight));
        // Units from eight elements of a row to the next eight, and from one row to the next.
        let [next, beside] = match self.of.transposed {
            true => [[0, UNIT], [1, 0]],
            false => [[UNIT, 0], [0, 1]],
        };
        let units = [next, beside].map(|[term, column]| self.of.place(term, column)[0]);
        let steps = [(block, self.of_block()), (number, units[0]), (line, units[1])];
        let zero = g.int(0);
        let first = steps.into_iter().fold(zero, |at, (index, units)| {
            let units = g.int(units * UNIT);
            let step = g.mul(index, units);
            g.add(at, step)
        });
        g.add(first, along)
    }
}

/// Nests whose stages lie as products of several warps read them, where plans have such.
pub fn units(g: &mut Graph, nests: Vec<Id>, plans: &[NestPlan], machine: &Machine) -> Vec<Id> {
    let mut all: FxHashMap<Id, Units> = FxHashMap::default();
    for (&nest, plan) in nests.iter().zip(plans) {
        let Some((load, of, row)) = columns(g, nest, plan, machine) else { continue };
        let buffer = g[load].src[0];
        if row < UNIT || all.contains_key(&buffer) {
            continue;
        }
        let units = Units { stage: buffer, of, row };
        let blocks = (g.max_of(g[buffer].src[0]) / row + units.rows() - 1) / units.rows();
        let elements = g.int(blocks * units.of_block() * UNIT);
        let (dtype, arg) = (g[buffer].dtype, g[buffer].arg.clone());
        let stage = g.intern(Node { op: Op::Local, dtype, src: smallvec![elements], arg });
        all.insert(buffer, Units { stage, ..units });
    }
    if all.is_empty() {
        return nests;
    }
    let moved = |nest: Id| {
        let mut n = Nest::of(g, nest);
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

/// What a nest's product of several warps, if that is its plan, reads of a stage: the load, the fragment, and elements from one column, or term, to the next.
fn columns(g: &Graph, nest: Id, plan: &NestPlan, machine: &Machine) -> Option<(Id, &'static Fragment, i64)> {
    let NestPlan::Warps(Warps { groups: true, wide, .. }) = plan else { return None };
    machine.fragments.iter().find(|of| of.is_of_group())?;
    let Nest { value, closed, .. } = Nest::of(g, nest);
    let (id, sum) = g.toposort(&[value]).into_iter().find_map(|n| Some((n, Sum::of(g, n)?)))?;
    let column = closed.iter().copied().rfind(|&r| g.range_kind(r) == Some(RangeKind::Upcast))?;
    let load = [sum.rows, sum.columns].into_iter().find(|&x| g.free_ranges(x).contains(&column))?;
    if g[load].op != Op::Load || g[g[load].src[0]].op != Op::Local {
        return None;
    }
    let at = g.linear(g[load].src[1]);
    let term = g[id].src[1..].iter().copied().find(|&r| g.range_kind(r) == Some(RangeKind::Unroll))?;
    let transposed = at.coefficient(column) == 1;
    let row = at.coefficient(if transposed { term } else { column });
    Some((load, Fragment::of_stage(sum.operand, wide * MMA_F16.columns, transposed)?, row))
}
