//! Turns reduction terms into accumulator updates, in an order that avoids dependent chains.

use gristmill_uop::{Arg, Graph, Id, Node, Op, ReduceOp, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// A new value of an accumulator, and the values that must be defined before it.
pub struct AccumulatorUpdate {
    pub acc: Id,
    pub value: Id,
    pub needs: Vec<Id>,
}

impl AccumulatorUpdate {
    /// Returns the update of an accumulator by a term: by a multiply-add operation, unless the term
    /// is already computed elsewhere (`known`).
    pub fn for_term(
        g: &mut Graph,
        (acc, term, op): (Id, Id, ReduceOp),
        known: bool,
    ) -> AccumulatorUpdate {
        let n = g[term].clone();
        let adds = op == ReduceOp::Add && !known;
        let last = n.src.len().saturating_sub(1);
        // Operations that add to their last source.
        let dot = matches!(n.op, Op::Dot4 | Op::SignedDot4 | Op::Halves)
            && g.int_value(n.src[last]) == Some(0);
        if adds && (matches!(n.op, Op::MmaHalf | Op::MmaShared | Op::TileMma) || dot) {
            let needs = n.src[..last].to_vec();
            let mut src = n.src.clone();
            src[last] = acc;
            return AccumulatorUpdate {
                acc,
                value: g.intern(Node { src, ..n }),
                needs,
            };
        }
        let (op, src, needs): (Op, Sources, Vec<Id>) =
            if adds && n.op == Op::Mul && n.dtype.scalar.is_float() {
                (Op::Fma, smallvec![n.src[0], n.src[1], acc], n.src.to_vec())
            } else {
                (op.combine(), smallvec![acc, term], vec![term])
            };
        AccumulatorUpdate {
            acc,
            value: g.intern(Node {
                op,
                dtype: n.dtype,
                src,
                arg: Arg::None,
            }),
            needs,
        }
    }
}

/// Visits the terms of a float sum; each is accumulated by itself.
pub fn terms(g: &Graph, value: Id, op: ReduceOp, each: &mut impl FnMut(Id)) {
    let n = &g[value];
    if op == ReduceOp::Add && n.op == Op::Add && n.dtype.scalar.is_float() {
        for &s in &n.src {
            terms(g, s, op, each);
        }
    } else {
        each(value);
    }
}

/// Returns whether the value is an MMA product of halves that are unpacked for it.
pub fn multiplies_unpacked(g: &Graph, value: Id) -> bool {
    g[value].op == Op::MmaHalf && g[g[value].src[0]].op == Op::ScaledPair
}

/// Interleaves the terms of several sums: the first term of each, then the second of each. Unpacked
/// operands are reused while they are in registers, and successive products are independent.
pub fn interleaved(values: Vec<(Id, Id, ReduceOp)>) -> Vec<(Id, Id, ReduceOp)> {
    let mut of_sum: FxHashMap<Id, usize> = FxHashMap::default();
    let mut numbered: Vec<(usize, (Id, Id, ReduceOp))> = values
        .into_iter()
        .map(|v| {
            let next = of_sum.entry(v.0).or_default();
            *next += 1;
            (*next, v)
        })
        .collect();
    numbered.sort_by_key(|v| v.0);
    numbered.into_iter().map(|v| v.1).collect()
}
