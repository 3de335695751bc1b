//! Random errors of the size of roundings, to measure how far rounding moves a result.

use super::{Data, Jitter, Step, Tensor};
use gristmill_uop::{Arg, Op, ReduceOp};

/// Splitmix64 of a counter, as a number in -1..1.
fn signed(counter: u64) -> f64 {
    let mut z = counter.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

fn largest(tensor: &Tensor) -> f64 {
    match &tensor.data {
        Data::Int(_) => 0.0,
        Data::Float(values) => values.iter().fold(0.0, |most, v| v.abs().max(most)),
    }
}

impl Step<'_> {
    /// Adds errors to the node's value. Sums have those of their terms, since they are computed in
    /// any order; ops that only move or choose elements have none.
    pub(super) fn jitter(&self, value: &mut Tensor) {
        let Jitter { part, seed } = self.env.jitter;
        let sums = match (self.node.op, &self.node.arg) {
            (Op::ScatterAdd | Op::Attention | Op::Scan, _) => true,
            (Op::Reduce, Arg::Reduce(op, _)) => *op == ReduceOp::Add,
            (Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Fma, _) => false,
            (Op::Recip | Op::Exp | Op::Exp2 | Op::Log | Op::Sqrt, _) => false,
            _ => return,
        };
        let terms = self.src.iter().map(|s| largest(s));
        let least = if sums { terms.fold(0.0, f64::max) } else { 0.0 };
        let is_sum_of_two = matches!(self.node.op, Op::Add | Op::Sub);
        let Data::Float(values) = &mut value.data else {
            return;
        };
        let first = seed.wrapping_add(self.id.index() as u64) << 32;
        for (i, v) in values.iter_mut().enumerate() {
            let mut scale = v.abs().max(least);
            if is_sum_of_two {
                // Scalars are not expanded.
                let terms = self.src.iter().map(|s| s.get(i % s.len()).float().abs());
                scale = terms.fold(scale, f64::max);
            }
            *v += part * scale * signed(first + i as u64);
        }
    }
}
