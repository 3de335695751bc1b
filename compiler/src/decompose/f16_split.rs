//! f32 values as two halves: `x ≈ high + low`, with `high = f16(x)` and `low = f16(x − high)`, off by at most 2⁻²² of x or 2⁻²⁵. A product with a
//! value that is a half itself is then two products of halves, which a GPU's matrix units add up in f32. A value that was rounded to a half is one
//! part, and one product.

use gristmill_uop::{Arg, Graph, Id, Node, Op, Scalar};

/// Are all values of a tensor halves, read as f32? Looks through what only moves them.
pub fn are_halves(g: &Graph, x: Id) -> bool {
    let n = &g[x];
    match n.op {
        Op::Cast => rounded(g, x),
        Op::Gather | Op::Reshape | Op::Permute | Op::Expand | Op::Shrink => are_halves(g, n.src[0]),
        _ => false,
    }
}

/// `x`, all of whose values are halves, as halves.
pub fn narrow(g: &mut Graph, x: Id) -> Id {
    let n = g[x].clone();
    if n.op == Op::Cast {
        return n.src[0];
    }
    let mut src = n.src;
    src[0] = narrow(g, src[0]);
    let dtype = g[src[0]].dtype;
    g.intern(Node { op: n.op, dtype, src, arg: n.arg })
}

/// The sum that `x` is, moved or not, if it is one.
pub fn computed(g: &Graph, x: Id) -> Vec<Id> {
    match g[x].op {
        Op::Reduce => vec![x],
        op if op.is_movement() => computed(g, g[x].src[0]),
        _ => vec![],
    }
}

/// Was `x`, or all that it joins, rounded to halves where it is computed?
pub fn rounded(g: &Graph, x: Id) -> bool {
    let n = &g[x];
    match n.op {
        Op::Cast => n.dtype.scalar == Scalar::F32 && g.scalar(n.src[0]) == Scalar::F16,
        Op::Cat => n.src[..n.src.len() - 1].iter().all(|&s| rounded(g, s)),
        _ => false,
    }
}

/// Halves that operands of matrix products are read from.
pub struct Parts {
    /// f16 `[.., 2, d]`, or `[.., 1, d]` of values that were rounded to halves.
    pub all: Id,
    /// The node that has them, before it is moved.
    pub stage: Id,
}

/// `x [.., d]` times `factor` as its parts; of rounded values there is one. The parts of what is joined are joined: each is split where it is
/// computed.
pub fn parts(g: &mut Graph, x: Id, factor: f64) -> Parts {
    if factor == 1.0 && rounded(g, x) {
        let stage = half(g, x);
        let mut dims = g.shape(stage);
        dims.insert(dims.len() - 1, g.int(1));
        return Parts { all: g.reshape(stage, &dims), stage };
    }
    let all = split(g, x, factor);
    Parts { all, stage: all }
}

/// Rounded values as halves.
fn half(g: &mut Graph, x: Id) -> Id {
    let n = g[x].clone();
    if n.op == Op::Cast {
        return n.src[0];
    }
    let all: Vec<Id> = n.src[..n.src.len() - 1].iter().map(|&s| half(g, s)).collect();
    let Arg::Axes(axes) = &n.arg else { unreachable!("what is joined is joined along an axis") };
    g.cat(&all, axes[0] as usize)
}

/// As two parts, `[.., 2, d]`.
fn split(g: &mut Graph, x: Id, factor: f64) -> Id {
    let rank = g.shape(x).len();
    let n = g[x].clone();
    if n.op == Op::Cat && n.arg == Arg::Axes([rank as u8 - 1].into_iter().collect()) {
        let all: Vec<Id> = n.src[..n.src.len() - 1].iter().map(|&s| split(g, s, factor)).collect();
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
