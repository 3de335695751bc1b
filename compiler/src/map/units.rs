//! Stages that products of several warps read as their columns lie as `uop/src/fragment.rs` (`Shared`) says. Elsewhere a stage has rows, one for each column. Whoever fills it writes the same elements to other places.

use crate::fragment::{Sum, at_swizzle, swizzled};
use crate::nest::{Nest, replaced, strided};
use crate::tile::{NestPlan, Warps};
use gristmill_uop::fragment::{Fragment, MMA_F16, OF_LINE, Shared, UNIT};
use gristmill_uop::machine::Machine;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// A stage whose elements lie in units.
struct Units {
    stage: Id,
    of: &'static Fragment,
    /// Elements of a row as it was: of a column, or of a term.
    row: i64,
    /// Those of them that are there: others keep rows apart.
    used: i64,
}

impl Units {
    /// Units of so many columns, or of so many terms, as a product has.
    fn of_block(&self) -> i64 {
        self.of.units(self.used)
    }
    /// Where the element lies that was at an offset.
    fn at(&self, g: &mut Graph, offset: Id) -> Id {
        let [row, lines, eight, four] = [self.row, self.of.lines(), UNIT, OF_LINE].map(|n| g.int(n));
        let (line, along) = (g.idiv(offset, row), g.modulo(offset, row));
        let (block, line) = (g.idiv(line, lines), g.modulo(line, lines));
        let (unit, along) = (g.idiv(along, eight), g.modulo(along, eight));
        let (number, unit) = (g.idiv(unit, four), g.modulo(unit, four));
        let unit = swizzled(g, unit, line);
        let of_number = OF_LINE * self.of.lines();
        let units = [(block, self.of_block()), (number, of_number), (line, OF_LINE), (unit, 1)];
        let elements = units.map(|(index, units)| (index, units * UNIT));
        strided(g, &[&elements[..], &[(along, 1)]].concat())
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
        let units = Units { stage: buffer, of, row, used: used(g, &nests, buffer, row) };
        let blocks = (g.max_of(g[buffer].src[0]) / row + of.lines() - 1) / of.lines();
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
    let (shared, along) = match at.coefficient(column) {
        1 => (Shared::Transposed, term),
        _ => (Shared::Columns, column),
    };
    Some((load, Fragment::of_stage(sum.operand, wide * MMA_F16.columns, shared)?, at.coefficient(along)))
}
