//! Typical values of index expressions that are only known at run time, for the cost model
//! and for loop lengths.

use gristmill_uop::{Arg, Graph, Id, Op};

/// Upper limit of a variable's value in cost estimates.
pub(crate) const TYPICAL: i64 = 1024;

/// Typical value of an index expression, at least 1 unless it is constant.
pub fn typical(g: &Graph, id: Id) -> f64 {
    if let Some(v) = g.int_value(id) {
        return v as f64;
    }
    let value = g.evaluate_index(id, &|name| typical_var(g, id, name));
    match value.map(|v| v as f64).or_else(|| midway(g, id)) {
        Some(v) => v.max(1.0),
        None => g
            .bounds(id)
            .map_or(TYPICAL as f64, |b| (b.1.min(TYPICAL)) as f64),
    }
}

/// Typical value of an expression over ranges, with each range at its midpoint.
fn midway(g: &Graph, id: Id) -> Option<f64> {
    let n = &g[id];
    let of = |i: usize| midway(g, n.src[i]);
    Some(match n.op {
        Op::Const => g.int_value(id)? as f64,
        Op::Var => typical(g, id),
        Op::Range => (typical(g, n.src[0]) - 1.0) / 2.0,
        Op::Add => of(0)? + of(1)?,
        Op::Mul => of(0)? * of(1)?,
        Op::IDiv => (of(0)? / of(1)?).floor(),
        Op::Min => of(0)?.min(of(1)?),
        Op::Max => of(0)?.max(of(1)?),
        _ => return None,
    })
}

fn typical_var(g: &Graph, root: Id, name: &str) -> Option<i64> {
    g.toposort(&[root])
        .into_iter()
        .find_map(|n| match &g[n].arg {
            Arg::Var(v, lo, hi) if v.as_ref() == name => Some((*hi).min(TYPICAL).max(*lo)),
            _ => None,
        })
}
