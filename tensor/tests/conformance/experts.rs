//! Mixture of experts: weights addressed by an index, for one token and for tokens grouped by
//! expert.

use crate::harness::Case;
use gristmill_encodings::{F32, Q4_0, Q4_K};
use gristmill_tensor::{dims, nn};
use gristmill_uop::{EncodingRef, Scalar};

const ENCODINGS: [EncodingRef; 3] = [&F32, &Q4_0, &Q4_K];

/// One token with the router and its chosen experts.
pub fn one_token() -> Vec<Case> {
    let mut out = Vec::new();
    for e in ENCODINGS {
        let (d, ff, count, used) = (e.elements.max(64), e.elements.max(64), 8, 3);
        out.push(Case::new(format!("one token, {}", e.name), |c| {
            let x = c.input("x", dims![1, d], Scalar::F32);
            let p = x.linear(c.weight("router", &[count, d], &F32)).sigmoid();
            let chosen = nn::top_k(p, used);
            let (index, weights) = (chosen.index.squeeze(0), chosen.select(p));
            let w = |name: &str, rows: usize, columns: usize| {
                c.weight(name, &[count, rows, columns], e).gather(index)
            };
            let a = x.contract(w("gate", ff, d)).silu() * x.contract(w("up", ff, d));
            let down = a.contract(w("down", d, ff));
            c.output(
                "y",
                x + (down * weights.reshape(dims![used, 1]))
                    .sum(&[0])
                    .unsqueeze(0),
            );
        }));
    }
    out
}

/// Several tokens in tiles of one expert each, with a data-dependent number of tiles.
pub fn grouped() -> Vec<Case> {
    let of_two = grouped_of([128, 256], &Q4_0, 2, 9).renamed("by 2");
    ENCODINGS
        .into_iter()
        .map(|e| grouped_by(e, 4, 13))
        .chain([of_two])
        .collect()
}

/// How tokens are dispatched to experts.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Meets {
    /// One token with its experts.
    One,
    /// Several tokens, each by itself.
    Each,
    /// Tokens grouped into tiles.
    Tiles,
}

/// Experts with every optional part: joint gate and up, biases, output scale, all gated units.
///
/// Gates and ups are large enough to be clamped.
pub fn with_every_part() -> Vec<Case> {
    let of = |(glu, meets): (nn::Glu, Meets)| {
        let many = meets != Meets::One;
        let (d, ff, count, used, most) = (64, 32, 6, 2, 13);
        let case = Case::new(format!("{glu:?} of experts with biases, {meets:?}"), |c| {
            let n = if many { c.var("n", 1, most) } else { c.int(1) };
            let x = c.input("x", dims![n, d], Scalar::F32);
            let p = x.linear(c.weight("router", &[count, d], &F32))
                + c.weight("router_bias", &[count], &F32);
            let chosen = nn::top_k(p, used);
            let height = (meets == Meets::Tiles).then_some(4);
            let sent =
                nn::Dispatch::new(chosen.index, n, if many { most } else { 1 }, count, height);
            let bias =
                |name: &str, out: usize| sent.of_experts(c.weight(name, &[count, out], &F32));
            let weight = |name: &str, out: usize, inner: usize| {
                sent.of_experts(c.weight(name, &[count, out, inner], &Q4_0))
            };
            let both = sent.spread(x).contract(weight("gate_up", 2 * ff, d))
                + bias("gate_up_bias", 2 * ff);
            let last = both.rank() - 1;
            let made = glu
                .apply(both.slice(last, 0, ff), both.slice(last, ff, ff))
                .contract(weight("down", d, ff))
                + bias("down_bias", d);
            let weights = nn::softmax(chosen.select(p))
                * c.weight("scale", &[count], &F32).gather(chosen.index);
            c.output("y", sent.combine(made, weights));
        });
        if many {
            case.vars(&[&[("n", 1)], &[("n", 5)], &[("n", most as i64)]])
        } else {
            case
        }
    };
    let meetings =
        [Meets::One, Meets::Each, Meets::Tiles].map(|meets| (nn::Glu::ClampedSwiglu, meets));
    meetings
        .into_iter()
        .chain([(nn::Glu::Geglu, Meets::Tiles)])
        .map(of)
        .collect()
}

/// Tiles of `height` tokens, with at most `most` tokens.
pub fn grouped_by(e: EncodingRef, height: usize, most: usize) -> Case {
    grouped_of([e.elements.max(64); 2], e, height, most)
}

/// Like [`grouped_by`], with `d` inputs and `ff` gates.
pub fn grouped_of([d, ff]: [usize; 2], e: EncodingRef, height: usize, most: usize) -> Case {
    let (count, used) = (6, 2);
    let case = Case::new(format!("n tokens, {}", e.name), |c| {
        let n = c.var("n", 1, most);
        let x = c.input("x", dims![n, d], Scalar::F32);
        let p = nn::softmax(x.linear(c.weight("router", &[count, d], &F32)));
        let chosen = nn::top_k(p, used);
        let t = nn::tiles(chosen.index, n, most, count, height);
        let rows = x.gather(t.token).reshape(dims![t.count, height, d]);
        let w = |name: &str, out: usize, inner: usize| {
            c.weight(name, &[count, out, inner], e)
                .gather(t.expert)
                .unsqueeze(1)
        };
        let a = rows.contract(w("gate", ff, d)).silu() * rows.contract(w("up", ff, d));
        let down = a
            .contract(w("down", d, ff))
            .reshape(dims![t.count * height as i64, d]);
        c.output(
            "y",
            x + (down.gather(t.row) * chosen.select(p).unsqueeze(2)).sum(&[1]),
        );
    });
    case.vars(&[&[("n", 1)], &[("n", 5)], &[("n", most as i64)]])
}
