//! Accumulates several byte dot products in 16 bits, for machines without a four-way dot product
//! into 32 bits.
//!
//! Such machines multiply bytes and add two neighbours in 16 bits, then add pairs of these in 32
//! bits. The second step is needed only once for as many words as 16 bits can hold: `Σ dot4(a, b) =
//! halves(dot2(a, b, dot2(…)))`.

use crate::ir::nest::identity;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp};

/// Returns the largest amount that one product of codes up to `most` with signed bytes adds to
/// a 16-bit half.
fn reach(most: i64) -> i64 {
    2 * 128 * most
}

/// Joins the [`Op::Dot4`] terms of each accumulator, if their bytes are small, as many
/// as 16 bits hold.
pub fn dot2_accumulate(g: &mut Graph, terms: Vec<(Id, Id, ReduceOp)>) -> Vec<(Id, Id, ReduceOp)> {
    // For each accumulator, the word that currently collects its terms: its index among the
    // results, and the largest value that it may hold.
    let mut open: Vec<(Id, usize, i64)> = Vec::new();
    let mut joined: Vec<(Id, Id, ReduceOp)> = Vec::new();
    for (acc, term, op) in terms {
        let n = g[term].clone();
        let most = match n.arg {
            Arg::Int(most) if n.op == Op::Dot4 && g.int_value(n.src[2]) == Some(0) => reach(most),
            _ => i64::MAX,
        };
        if op != ReduceOp::Add || most > i16::MAX as i64 {
            joined.push((acc, term, op));
            continue;
        }
        let Arg::Int(largest) = n.arg else {
            unreachable!("a product of bytes knows the largest")
        };
        let none = n.src[2];
        match open
            .iter_mut()
            .find(|o| o.0 == acc && o.2 + most <= i16::MAX as i64)
        {
            Some((_, at, held)) => {
                let word = g[joined[*at].1].src[0];
                let word = g.dot2(n.src[0], n.src[1], word, largest);
                joined[*at].1 = g.halves(word, none);
                *held += most;
            }
            None => {
                let zero = identity(g, ReduceOp::Add, g[n.src[0]].dtype);
                let word = g.dot2(n.src[0], n.src[1], zero, largest);
                let sum = g.halves(word, none);
                open.retain(|o| o.0 != acc);
                open.push((acc, joined.len(), most));
                joined.push((acc, sum, op));
            }
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::Scalar;
    use gristmill_uop::fold::{dot2, dot4, halves};

    /// For bytes up to `most`: the number of joined `halves`, and the value of their total.
    #[test]
    fn as_many_products_are_joined_as_sixteen_bits_hold() {
        for (most, words, expected) in [
            (3, 8, 1),
            (15, 8, 1),
            (16, 8, 2),
            (31, 8, 2),
            (63, 8, 4),
            (127, 8, 8),
        ] {
            let mut g = Graph::new();
            let none = g.int_of(Scalar::I32, 0);
            let acc = g.param(0, &[], Scalar::I32);
            let word = |byte: i64| byte * 0x0101_0101;
            let (a, b) = (word(most), word(0x80));
            let terms: Vec<_> = (0..words)
                .map(|i| {
                    // Distinct words, so that equal nodes are not merged.
                    let (a, b) = (
                        g.param(i + 1, &[], Scalar::U32),
                        g.param(i + 100, &[], Scalar::U32),
                    );
                    (acc, g.dot4(a, b, none, most), ReduceOp::Add)
                })
                .collect();
            let joined = dot2_accumulate(&mut g, terms);
            assert_eq!(joined.len(), expected, "bytes up to {most}");
            let sum = |mut x: Id| {
                let mut count = 0;
                while g[x].op == Op::Dot2 {
                    (count, x) = (count + 1, g[x].src[2]);
                }
                halves((0..count).fold(0, |sum, _| dot2(a, b, sum)), 0)
            };
            let total: i64 = joined.iter().map(|j| sum(g[j.1].src[0])).sum();
            assert_eq!(total, words as i64 * dot4(a, b, 0), "bytes up to {most}");
        }
    }

    #[test]
    fn bytes_that_do_not_fit_and_other_terms_stay() {
        let mut g = Graph::new();
        let none = g.int_of(Scalar::I32, 0);
        let (acc, word) = (g.param(0, &[], Scalar::I32), g.param(1, &[], Scalar::U32));
        let large = g.dot4(word, word, none, 128);
        let small = g.dot4(word, word, acc, 15);
        let terms = vec![(acc, large, ReduceOp::Add), (acc, small, ReduceOp::Add)];
        assert_eq!(dot2_accumulate(&mut g, terms.clone()), terms);
    }
}
