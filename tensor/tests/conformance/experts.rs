//! Experts: weights addressed through an index, for one token and for tokens grouped by expert.

use crate::harness::Case;
use gristmill_encodings::{F32, Q4_0, Q4_K};
use gristmill_tensor::{dims, nn};
use gristmill_uop::{EncodingRef, Scalar};

const ENCODINGS: [EncodingRef; 3] = [&F32, &Q4_0, &Q4_K];

/// One token: the chosen experts side by side, the router before them.
pub fn one_token() -> Vec<Case> {
    let mut out = Vec::new();
    for e in ENCODINGS {
        let (d, ff, count, used) = (e.elements.max(64), e.elements.max(64), 8, 3);
        out.push(Case::new(format!("one token, {}", e.name), |c| {
            let x = c.input("x", dims![1, d], Scalar::F32);
            let p = x.linear(c.weight("router", &[count, d], &F32)).sigmoid();
            let chosen = nn::top_k(p, used);
            let (index, weights) = (chosen.index.squeeze(0), chosen.of(p));
            let w = |name: &str, rows: usize, columns: usize| c.weight(name, &[count, rows, columns], e).gather(index);
            let a = x.contract(w("gate", ff, d)).silu() * x.contract(w("up", ff, d));
            let down = a.contract(w("down", d, ff));
            c.output("y", x + (down * weights.reshape(dims![used, 1])).sum(&[0]).unsqueeze(0));
        }));
    }
    out
}

/// Several tokens: tiles of one expert each, as many as the data asks for.
pub fn grouped() -> Vec<Case> {
    ENCODINGS.into_iter().map(|e| grouped_by(e, 4, 13)).collect()
}

/// Tiles of `height` tokens, of at most `most`.
pub fn grouped_by(e: EncodingRef, height: usize, most: usize) -> Case {
    let (d, ff, count, used) = (e.elements.max(64), e.elements.max(64), 6, 2);
    let case = Case::new(format!("n tokens, {}", e.name), |c| {
        let n = c.var("n", 1, most);
        let x = c.input("x", dims![n, d], Scalar::F32);
        let p = nn::softmax(x.linear(c.weight("router", &[count, d], &F32)));
        let chosen = nn::top_k(p, used);
        let t = nn::tiles(chosen.index, n, most, count, height);
        let rows = x.gather(t.token).reshape(dims![t.count, height, d]);
        let w = |name: &str, out: usize, inner: usize| {
            c.weight(name, &[count, out, inner], e).gather(t.expert).unsqueeze(1)
        };
        let a = rows.contract(w("gate", ff, d)).silu() * rows.contract(w("up", ff, d));
        let down = a.contract(w("down", d, ff)).reshape(dims![t.count * height as i64, d]);
        c.output("y", x + (down.gather(t.row) * chosen.of(p).unsqueeze(2)).sum(&[1]));
    });
    case.vars(&[&[("n", 1)], &[("n", 5)], &[("n", most as i64)]])
}
