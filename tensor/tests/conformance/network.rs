//! Blocks of models: norms before contractions, RoPE, softmax, top-k with ties, several outputs.

use crate::harness::{Case, Fill, Within};
use gristmill_encodings::{F16, F32, Q4_0, Q6_K};
use gristmill_tensor::tensor::Tensor;
use gristmill_tensor::{dims, nn};
use gristmill_uop::{EncodingRef, Scalar};

const RUNS: &[&[(&str, i64)]] = &[
    &[("n", 1), ("pos", 0)],
    &[("n", 5), ("pos", 17)],
    &[("n", 8), ("pos", 40)],
];

pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    let weights: [EncodingRef; 3] = [&F16, &Q4_0, &Q6_K];
    for e in weights {
        for many in [false, true] {
            let d = e.elements.max(64);
            let case = Case::new(format!("norm and matvec, {} {many}", e.name), |c| {
                let n = if many { c.var("n", 1, 8) } else { c.int(1) };
                let x = c.input("x", dims![n, d], Scalar::F32);
                let y = nn::rms_norm(x, c.weight("norm", &[d], &F32), 1e-5);
                let (a, b) = (
                    y.linear(c.weight("a", &[48, d], e)),
                    y.linear(c.weight("b", &[10, d], e)),
                );
                c.output("a", a);
                c.output("b", b.silu());
            });
            out.push(if many { case.vars(RUNS) } else { case });
            let case = Case::new(format!("swiglu, {} {many}", e.name), |c| {
                let n = if many { c.var("n", 1, 8) } else { c.int(1) };
                let x = c.input("x", dims![n, d], Scalar::F32);
                let y = nn::rms_norm(x, c.weight("norm", &[d], &F32), 1e-5);
                let w =
                    |name: &str, rows: usize, columns: usize| c.weight(name, &[rows, columns], e);
                c.output(
                    "y",
                    x + nn::Glu::Swiglu
                        .apply(y.linear(w("gate", 2 * d, d)), y.linear(w("up", 2 * d, d)))
                        .linear(w("down", d, 2 * d)),
                );
            });
            out.push(if many { case.vars(RUNS) } else { case });
        }
    }
    for (heads, width) in [(1, 16), (3, 10), (4, 64)] {
        out.push(
            Case::new(format!("rope {heads} {width}"), |c| {
                let (n, pos) = (c.var("n", 1, 8), c.var("pos", 0, 40));
                let x = c.input("x", dims![n, heads, width], Scalar::F32);
                let table = c.input("table", dims![48, width / 2, 2], Scalar::F32);
                c.output(
                    "y",
                    nn::rope(x, table.slice(0, pos, x.dim(0)), nn::Pairing::Interleaved),
                );
            })
            .vars(RUNS),
        );
    }
    out.push(
        Case::new("several outputs", |c| {
            let n = c.var("n", 1, 8);
            let x = c.input("x", dims![n, 40], Scalar::F32);
            let s = nn::softmax(x);
            c.output("softmax", s);
            c.output("logarithm", s.log());
            c.output("same", x);
            c.output("halves", x.cast(Scalar::F16));
            c.output("bf", x.cast(Scalar::BF16));
            c.output("best", s.max(&[1]));
            c.output("constant", c.constant(2.5, Scalar::F32).expand(dims![4]));
        })
        .vars(RUNS),
    );
    out.push(Case::new("activations", |c| {
        let x = c.input("x", dims![4, 33], Scalar::F32) * 8.0;
        c.output("silu", x.silu());
        c.output("sigmoid", x.sigmoid());
        c.output("softplus", x.softplus());
        c.output("root", x.softplus().sqrt());
    }));
    out.push(
        Case::new("softmax of large and equal numbers", |c| {
            c.output("y", nn::softmax(c.input("x", dims![4, 24], Scalar::F32)));
        })
        .fill(
            0,
            Fill::Values(vec![-1e30, 500.0, 500.0, 499.0, -3.0, 0.0, 500.0]),
        ),
    );
    out
}

/// Top-k selection: with ties, with groups, of one and of all.
pub fn choosing() -> Vec<Case> {
    let mut out = Vec::new();
    for (n, k) in [(8, 3), (8, 8), (64, 4), (7, 1), (24, 6)] {
        for ties in [false, true] {
            let case = Case::new(format!("best {k} of {n}, ties {ties}"), |c| {
                let rows = c.var("n", 1, 8);
                let b = c.input("b", dims![rows, n], Scalar::F32);
                let chosen = nn::top_k(b, k);
                let weights = chosen.select(b);
                c.output("index", chosen.index);
                c.output(
                    "weights",
                    weights / weights.sum(&[1]).maximum(1e-3).unsqueeze(1),
                );
                c.output("softmax", nn::softmax(weights));
                c.output("rank", nn::rank(b));
            });
            let case = case.vars(RUNS);
            out.push(if ties {
                case.fill(0, Fill::Whole(0, 4))
            } else {
                case
            });
        }
    }
    for (n, groups, used) in [(8, 4, 2), (24, 4, 3), (64, 8, 4)] {
        for ties in [false, true] {
            let case = Case::new(
                format!("{used} of {groups} groups of {n}, ties {ties}"),
                |c| {
                    let rows = c.var("n", 1, 8);
                    let b = c.input("b", dims![rows, n], Scalar::F32);
                    let limited = nn::group_limited(b, groups, used);
                    c.output("limited", limited);
                    c.output("index", nn::top_k(limited, 3).index);
                },
            );
            let case = case.vars(RUNS).within(Within::Each(1e-6));
            out.push(if ties {
                case.fill(0, Fill::Whole(0, 3))
            } else {
                case
            });
        }
    }
    out.push(
        Case::new("scores that are no numbers", |c| {
            let b = c.input("b", dims![2, 8], Scalar::F32);
            let index = nn::top_k(b, 3).index;
            // With NaN scores the experts are arbitrary, but their indices must be valid.
            c.output("valid", (index.lt(8) & index.gt(-1)).cast(Scalar::I32));
        })
        .fill(
            0,
            Fill::Values(vec![f64::NAN, 1.0, f64::INFINITY, f64::NAN, 0.5]),
        ),
    );
    out.push(
        Case::new("joined and normed", |c| {
            let x = c.input("x", dims![3, 48], Scalar::F32);
            let a = nn::rms_norm(
                x.slice(1, 0, 32),
                c.input("w", dims![32], Scalar::F32),
                1e-5,
            );
            c.output(
                "y",
                Tensor::cat(&[a, x.slice(1, 32, 16).exp()], 1)
                    .cast(Scalar::F16)
                    .cast(Scalar::F32),
            );
        })
        .within(Within::Scale(1e-3)),
    );
    out
}
