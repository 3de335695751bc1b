//! Interval analysis: smallest and largest value of integer and boolean nodes.
//!
//! Rules that drop a modulo, a mask or a comparison rely on these bounds, so they are conservative:
//! `None` if nothing better is known, and always within the range of the dtype.

use crate::dtype::Scalar;
use crate::graph::Graph;
use crate::id::Id;
use crate::node::{Arg, Node};
use crate::op::{Op, ReduceOp};

type Bounds = Option<(i64, i64)>;

/// Infers the bounds of a node whose sources are in `g`.
pub(crate) fn infer_bounds(g: &Graph, node: &Node) -> Bounds {
    let scalar = node.dtype.scalar;
    let whole = scalar.range()?;
    let b = |i: usize| g.bounds(node.src[i]);
    let found = match node.op {
        Op::Cast if g.scalar(node.src[0]).range().is_some() => {
            b(0).filter(|&(lo, hi)| lo >= whole.0 && hi <= whole.1)
        }
        Op::Splat | Op::Reshape | Op::Permute | Op::Expand | Op::Shrink | Op::Gather | Op::Copy => {
            b(0)
        }
        Op::Reduce => reduce(g, node, whole),
        Op::Where => join(b(1), b(2)),
        Op::Lt | Op::Eq => compare(node.op, b(0), b(1)),
        // One known side is enough for one bound: `max(min(x, n), 0)` clamps a number read from a
        // buffer.
        Op::Max => match (b(0), b(1)) {
            (Some(a), Some(c)) => Some((a.0.max(c.0), a.1.max(c.1))),
            (Some(a), None) | (None, Some(a)) => Some((a.0, i64::MAX)),
            _ => None,
        },
        Op::Min => match (b(0), b(1)) {
            (Some(a), Some(c)) => Some((a.0.min(c.0), a.1.min(c.1))),
            (Some(a), None) | (None, Some(a)) => Some((i64::MIN, a.1)),
            _ => None,
        },
        Op::Add | Op::Mul | Op::IDiv | Op::Mod => {
            both(b(0), b(1), |a, c| arithmetic(node.op, a, c))
        }
        Op::And | Op::Or | Op::Xor | Op::Shl | Op::Shr => {
            both(b(0), b(1), |a, c| of_bits(node.op, a, c))
        }
        _ => source(g, node),
    };
    match found {
        // Arithmetic that may wrap in this dtype gives no bounds.
        Some((lo, hi)) if whole.0 <= lo && lo <= hi && hi <= whole.1 => found,
        _ if scalar == Scalar::I64 => None,
        _ => Some(whole),
    }
}

/// Bounds of leaf nodes: constants, variables, indices, tables.
fn source(g: &Graph, node: &Node) -> Bounds {
    // Bounds of an index below `dim`.
    let below = |dim: Id| {
        g.bounds(dim)
            .map(|(_, hi)| (0, hi.saturating_sub(1).max(0)))
    };
    match (node.op, &node.arg) {
        (Op::Const, Arg::Int(v)) => Some((*v, *v)),
        (Op::Var, Arg::Var(_, lo, hi)) => Some((*lo, *hi)),
        (Op::Range, _) => below(node.src[0]),
        (Op::Iota, Arg::Axes(a)) => a
            .first()
            .and_then(|&a| node.src.get(a as usize))
            .and_then(|&dim| below(dim)),
        (Op::Lanes, _) => Some((0, node.dtype.lanes as i64 - 1)),
        (Op::Table, Arg::Ints(t)) => t
            .iter()
            .min()
            .zip(t.iter().max())
            .map(|(&lo, &hi)| (lo as i64, hi as i64)),
        _ => None,
    }
}

/// Bounds of a sum, product, quotient or remainder.
fn arithmetic(op: Op, a: (i64, i64), c: (i64, i64)) -> Bounds {
    match op {
        Op::Add => Some((a.0.checked_add(c.0)?, a.1.checked_add(c.1)?)),
        Op::Mul => {
            let p = [
                a.0.checked_mul(c.0)?,
                a.0.checked_mul(c.1)?,
                a.1.checked_mul(c.0)?,
                a.1.checked_mul(c.1)?,
            ];
            Some((*p.iter().min()?, *p.iter().max()?))
        }
        Op::IDiv if c.0 > 0 => {
            let q = [
                a.0.div_euclid(c.0),
                a.0.div_euclid(c.1),
                a.1.div_euclid(c.0),
                a.1.div_euclid(c.1),
            ];
            Some((*q.iter().min()?, *q.iter().max()?))
        }
        Op::Mod if c.0 > 0 => Some(if a.0 >= 0 && a.1 < c.0 {
            a
        } else {
            (0, c.1 - 1)
        }),
        _ => None,
    }
}

/// Bounds of a bitwise operation or shift.
fn of_bits(op: Op, a: (i64, i64), c: (i64, i64)) -> Bounds {
    match op {
        Op::And => match (a.0 >= 0, c.0 >= 0) {
            (true, true) => Some((0, a.1.min(c.1))),
            (true, false) => Some((0, a.1)),
            (false, true) => Some((0, c.1)),
            _ => None,
        },
        Op::Or | Op::Xor if a.0 >= 0 && c.0 >= 0 => Some((0, ones(a.1.max(c.1)))),
        Op::Shl if a.0 >= 0 && c.0 >= 0 && c.1 < 62 => {
            Some((a.0 << c.0, a.1.checked_mul(1 << c.1)?))
        }
        Op::Shr if c.0 >= 0 && c.1 < 64 => {
            Some(((a.0 >> c.0).min(a.0 >> c.1), (a.1 >> c.0).max(a.1 >> c.1)))
        }
        _ => None,
    }
}

fn both(a: Bounds, b: Bounds, f: impl Fn((i64, i64), (i64, i64)) -> Bounds) -> Bounds {
    f(a?, b?)
}

fn join(a: Bounds, b: Bounds) -> Bounds {
    let (a, b) = (a?, b?);
    Some((a.0.min(b.0), a.1.max(b.1)))
}

/// Returns the smallest 2^n - 1 that is at least `v`.
fn ones(v: i64) -> i64 {
    ((v as u64 + 1).next_power_of_two() - 1) as i64
}

/// Bounds of a reduction, at either level. An empty sum is 0; an empty maximum is the smallest
/// value of the type.
fn reduce(g: &Graph, node: &Node, whole: (i64, i64)) -> Bounds {
    let Arg::Reduce(op, axes) = &node.arg else {
        return None;
    };
    let (lo, hi) = g.bounds(node.src[0])?;
    // Smallest and largest number of reduced values: the product of the dims, or of the ranges'
    // bounds.
    let mut count = (1i64, 1i64);
    let dims = g.dims(node.src[0]);
    let axes = axes.iter().map(|&a| dims.get(a as usize).copied());
    let ranges = node.src[1..].iter().map(|r| g[*r].src.first().copied());
    for size in axes.chain(ranges) {
        let (a, b) = size.and_then(|s| g.bounds(s)).unwrap_or((0, i64::MAX));
        count = (
            count.0.saturating_mul(a.max(0)),
            count.1.checked_mul(b.max(0)).unwrap_or(i64::MAX),
        );
    }
    match op {
        ReduceOp::Max if count.0 > 0 => Some((lo, hi)),
        ReduceOp::Max => Some((whole.0, hi)),
        ReduceOp::Add => {
            let ends = [
                lo.checked_mul(count.0)?,
                lo.checked_mul(count.1)?,
                hi.checked_mul(count.0)?,
                hi.checked_mul(count.1)?,
            ];
            Some((*ends.iter().min()?, *ends.iter().max()?))
        }
    }
}

fn compare(op: Op, a: Bounds, b: Bounds) -> Bounds {
    let (Some(a), Some(b)) = (a, b) else {
        return Some((0, 1));
    };
    let (always, never) = match op {
        Op::Lt => (a.1 < b.0, a.0 >= b.1),
        _ => (a == b && a.0 == a.1, a.1 < b.0 || b.1 < a.0),
    };
    Some(match (always, never) {
        (true, _) => (1, 1),
        (_, true) => (0, 0),
        _ => (0, 1),
    })
}

impl Graph {
    /// Returns whether `id` is known to lie in `lo..=hi`.
    pub fn within(&self, id: Id, lo: i64, hi: i64) -> bool {
        self.bounds(id).is_some_and(|(a, b)| a >= lo && b <= hi)
    }
    /// Matches `max(min(x, y), z)` of integers with `z <= y` known, which equals `min(max(x, z),
    /// y)`; returns `[x, y, z]`.
    pub fn bounded_above_first(&self, n: &Node) -> Option<[Id; 3]> {
        if n.op != Op::Max {
            return None;
        }
        let clamp = |(min, z): (Id, Id)| {
            let most = self.bounds(z)?.1;
            let [a, b] = self[min].src[..] else {
                return None;
            };
            let is_last = |&(_, y): &(Id, Id)| self.bounds(y).is_some_and(|y| y.0 >= most);
            let (x, y) = [(a, b), (b, a)]
                .into_iter()
                .find(is_last)
                .filter(|_| self[min].op == Op::Min)?;
            Some([x, y, z])
        };
        [(n.src[0], n.src[1]), (n.src[1], n.src[0])]
            .into_iter()
            .find_map(clamp)
    }
    /// Returns the largest value of an integer node. Panics if no bound is known, which the spec
    /// rules out for dims.
    pub fn max_of(&self, id: Id) -> i64 {
        match self.bounds(id) {
            Some((_, hi)) => hi,
            None => panic!("no bound known for {id:?}: {:?}", self[id]),
        }
    }
}
