//! Packed weights: every encoding of the table, in every kind of contraction.

use crate::harness::{Case, Fill, Within};
use crate::{experts, invented, network};
use gristmill_encodings::TABLE;
use gristmill_tensor::dims;
use gristmill_uop::{EncodingRef, Scalar};

/// A row of two blocks, or of as many elements.
fn row(e: EncodingRef) -> usize {
    2 * e.elements.max(32)
}

/// Dequantisation is exact to the bit.
pub fn decoding() -> Vec<Case> {
    let decode = |e: &EncodingRef| decoding_of(e);
    TABLE.iter().map(decode).collect()
}

pub fn decoding_of(e: EncodingRef) -> Case {
    Case::new(format!("decode {}", e.name), |c| {
        c.output("w", c.weight("w", &[5, row(e)], e));
    })
    .within(Within::Exact)
}

/// `[t, in] x [rows, in]`, with one token or a variable number of at most 13.
pub fn contraction(e: EncodingRef, rows: usize, many: bool) -> Case {
    let case = Case::new(format!("{} rows of {}, {}", rows, e.name, if many { "n tokens" } else { "a token" }), |c| {
        let n = if many { c.var("n", 1, 13) } else { c.int(1) };
        let x = c.input("x", dims![n, row(e)], Scalar::F32);
        c.output("y", x.linear(c.weight("w", &[rows, row(e)], e)));
    });
    if many { case.vars(&[&[("n", 1)], &[("n", 5)], &[("n", 8)], &[("n", 13)]]) } else { case }
}

pub fn matvec() -> Vec<Case> {
    TABLE.iter().map(|e| contraction(e, 64, false)).collect()
}

pub fn matmul() -> Vec<Case> {
    TABLE.iter().map(|e| contraction(e, 32, true)).collect()
}

/// Row counts that no tile divides.
pub fn odd_rows() -> Vec<Case> {
    let mut out = Vec::new();
    for e in TABLE.iter().copied().filter(|e| ["f32", "f16", "q8_0", "q4_0", "q4_k", "q6_k"].contains(&e.name)) {
        for rows in [1, 6, 33] {
            out.push(contraction(e, rows, false));
            out.push(contraction(e, rows, true));
        }
    }
    // Rows that vectors do not divide: a plain encoding may have any length.
    for e in TABLE.iter().copied().filter(|e| e.elements == 1) {
        for n in [1, 7, 24, 40, 100] {
            out.push(Case::new(format!("{n} columns of {}", e.name), |c| {
                let x = c.input("x", dims![1, n], Scalar::F32);
                c.output("y", x.linear(c.weight("w", &[10, n], e)));
            }));
        }
    }
    out
}

/// Rows chosen by an index, decoded: an embedding.
pub fn gather() -> Vec<Case> {
    let mut out = Vec::new();
    for &e in TABLE {
        out.push(
            Case::new(format!("embedding of {}", e.name), |c| {
                let n = c.var("n", 1, 9);
                let tokens = c.input("tokens", dims![n], Scalar::I32);
                c.output("x", c.weight("w", &[20, row(e)], e).gather(tokens.clamp_index(19)));
            })
            .fill(0, Fill::Whole(-5, 25))
            .vars(&[&[("n", 1)], &[("n", 9)]])
            .within(Within::Exact),
        );
        out.push(
            Case::new(format!("experts of {}", e.name), |c| {
                let index = c.input("index", dims![3], Scalar::I32);
                let x = c.input("x", dims![1, row(e)], Scalar::F32);
                c.output("y", x.contract(c.weight("w", &[4, 6, row(e)], e).gather(index)));
            })
            .fill(0, Fill::Values(vec![2.0, 0.0, 3.0])),
        );
    }
    out
}

/// How near the product of activations encoded in eight bits is to the exact one, of its largest element: each activation is off by at most
/// half of a 127th of the largest beside it.
const ENCODED: Within = Within::Scale(2e-2);

/// Contractions in integers, of every format.
pub fn integer() -> Vec<Case> {
    let mut out = Vec::new();
    for &e in TABLE {
        for (rows, many) in [(64, false), (32, true), (33, false), (16, true)] {
            let mut case = contraction(e, rows, many).within(ENCODED);
            case.name.push_str(", integers");
            out.push(case);
        }
    }
    out.extend(gather());
    out
}

/// What surrounds contractions in a model.
pub fn integer_network() -> Vec<Case> {
    network::cases()
        .into_iter()
        .chain(experts::one_token())
        .chain(experts::grouped())
        .chain(invented::cases())
        .map(|c| c.within(ENCODED))
        .collect()
}
