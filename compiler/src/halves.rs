//! f32 values as two halves: `x ≈ high + low`, with `high = f16(x)` and `low = f16(x − high)`, off by at most 2⁻²² of x or 2⁻²⁵. A product with a
//! value that is a half itself is then two products of halves, which a GPU's matrix units add up in f32.

use gristmill_uop::{Arg, Graph, Id, Op, Scalar};

/// Are all values of a tensor halves, read as f32? Looks through what only moves them.
pub fn are_halves(g: &Graph, x: Id) -> bool {
    let n = &g[x];
    match n.op {
        Op::Cast => n.dtype.scalar == Scalar::F32 && g.scalar(n.src[0]) == Scalar::F16,
        Op::Gather | Op::Reshape | Op::Permute | Op::Expand | Op::Shrink => are_halves(g, n.src[0]),
        _ => false,
    }
}

/// The sum that `x` is, moved or not, if it is one.
pub fn computed(g: &Graph, x: Id) -> Vec<Id> {
    match g[x].op {
        Op::Reduce => vec![x],
        op if op.is_movement() => computed(g, g[x].src[0]),
        _ => vec![],
    }
}

/// `x [.., d]` times `factor` as its parts, f16 `[.., 2, d]`. The parts of what is joined are joined: each is split where it is computed.
pub fn parts(g: &mut Graph, x: Id, factor: f64) -> Id {
    let rank = g.shape(x).len();
    let n = g[x].clone();
    if n.op == Op::Cat && n.arg == Arg::Axes([rank as u8 - 1].into_iter().collect()) {
        let all: Vec<Id> = n.src[..n.src.len() - 1].iter().map(|&s| parts(g, s, factor)).collect();
        return g.cat(&all, rank);
    }
    let x = match factor == 1.0 {
        true => x,
        false => {
            let factor = g.constant(Scalar::F32, factor);
            g.mul(x, factor)
        }
    };
    let (one, two) = (g.int(1), g.int(2));
    let mut dims = g.shape(x);
    dims.insert(rank - 1, one);
    let x = g.reshape(x, &dims);
    dims[rank - 1] = two;
    let x = g.expand(x, &dims);
    let part = g.iota(&dims, rank - 1);
    let low = g.eq(part, one);
    let high = g.cast(x, Scalar::F16);
    let high = g.cast(high, Scalar::F32);
    let zero = g.f32(0.0);
    let minus = g.select(low, high, zero);
    let part = g.sub(x, minus);
    g.cast(part, Scalar::F16)
}
