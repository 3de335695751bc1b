//! Integer expressions as linear combinations, `constant + Σ coefficient·term`.
//!
//! Index arithmetic is kept in this normal form, so that equal addresses are equal nodes
//! and strides are explicit.

use crate::dtype::{DType, Scalar};
use crate::fold::Value;
use crate::graph::Graph;
use crate::id::Id;
use crate::node::{Arg, Node};
use crate::op::Op;
use smallvec::{SmallVec, smallvec};

/// `constant + Σ coefficient·term`, with distinct terms in ascending order of id.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Linear {
    /// Terms with their non-zero coefficients.
    pub terms: SmallVec<[(Id, i64); 4]>,
    /// Value if every term is zero.
    pub constant: i64,
}

impl Linear {
    /// Adds `k` times `other`.
    pub fn add_scaled(&mut self, other: &Linear, k: i64) {
        self.constant = self.constant.wrapping_add(other.constant.wrapping_mul(k));
        for &(t, c) in &other.terms {
            let c = c.wrapping_mul(k);
            match self.terms.binary_search_by_key(&t, |x| x.0) {
                Ok(i) => {
                    self.terms[i].1 = self.terms[i].1.wrapping_add(c);
                    if self.terms[i].1 == 0 {
                        self.terms.remove(i);
                    }
                }
                Err(i) if c != 0 => self.terms.insert(i, (t, c)),
                Err(_) => {}
            }
        }
    }
    /// Coefficient of a term; 0 if it does not occur.
    pub fn coefficient(&self, term: Id) -> i64 {
        self.terms
            .binary_search_by_key(&term, |x| x.0)
            .map_or(0, |i| self.terms[i].1)
    }
    /// Splits into the part with coefficients divisible by `d` (divided by it) and the rest. The
    /// non-negative remainder of the constant stays in the rest.
    pub fn split(&self, d: i64) -> (Linear, Linear) {
        let (mut quotient, mut rest) = (Linear::default(), Linear::default());
        for &(t, c) in &self.terms {
            if c % d == 0 {
                quotient.terms.push((t, c / d))
            } else {
                rest.terms.push((t, c))
            }
        }
        quotient.constant = self.constant.div_euclid(d);
        rest.constant = self.constant.rem_euclid(d);
        (quotient, rest)
    }
}

impl Graph {
    /// Decomposes an integer node; a node that is not a sum is its own single term.
    pub fn linear(&self, id: Id) -> Linear {
        let node = &self[id];
        match node.op {
            Op::Const => Linear {
                terms: smallvec![],
                constant: self.int_value(id).unwrap_or(0),
            },
            Op::Add => {
                let mut a = self.linear(node.src[0]);
                a.add_scaled(&self.linear(node.src[1]), 1);
                a
            }
            Op::Mul => match self.int_value(node.src[1]) {
                Some(c) => {
                    let mut out = Linear::default();
                    out.add_scaled(&self.linear(node.src[0]), c);
                    out
                }
                None => Linear {
                    terms: smallvec![(id, 1)],
                    constant: 0,
                },
            },
            _ => Linear {
                terms: smallvec![(id, 1)],
                constant: 0,
            },
        }
    }
    /// Builds the node of a sum: a chain of additions in the order of the terms, constant last.
    /// Coefficients out of the dtype's range wrap, as the sum itself would.
    pub fn from_linear(&mut self, sum: &Linear, dtype: DType) -> Id {
        let wrap = |v: i64| Value::Int(v).stored_as(dtype.scalar).int();
        let raw = |g: &mut Graph, op, a, b| {
            g.intern(Node {
                op,
                dtype,
                src: smallvec![a, b],
                arg: Arg::None,
            })
        };
        let mut total = None;
        for &(t, c) in &sum.terms {
            let c = wrap(c);
            if c == 0 {
                continue;
            }
            let term = if c == 1 {
                t
            } else {
                let c = self.int_of(dtype, c);
                raw(self, Op::Mul, t, c)
            };
            total = Some(match total {
                None => term,
                Some(s) => raw(self, Op::Add, s, term),
            });
        }
        match total {
            None => self.int_of(dtype, sum.constant),
            Some(s) if wrap(sum.constant) == 0 => s,
            Some(s) => {
                let c = self.int_of(dtype, sum.constant);
                raw(self, Op::Add, s, c)
            }
        }
    }
    /// Bounds of a sum that cannot wrap in that type for any value of its terms; `None` if it may.
    ///
    /// Such a sum equals the value of its node and may be divided and compared. (A node and its sum
    /// agree modulo 2^bits in any case.)
    pub fn exact_bounds(&self, sum: &Linear, scalar: Scalar) -> Option<(i64, i64)> {
        let (lo, hi) = scalar.range()?;
        self.linear_bounds(sum).filter(|b| b.0 >= lo && b.1 <= hi)
    }
    /// Bounds of a sum, if those of all terms are known.
    pub fn linear_bounds(&self, sum: &Linear) -> Option<(i64, i64)> {
        let (mut lo, mut hi) = (sum.constant, sum.constant);
        for &(t, c) in &sum.terms {
            let (a, b) = self.bounds(t)?;
            let (a, b) = (a.checked_mul(c)?, b.checked_mul(c)?);
            lo = lo.checked_add(a.min(b))?;
            hi = hi.checked_add(a.max(b))?;
        }
        Some((lo, hi))
    }
}
