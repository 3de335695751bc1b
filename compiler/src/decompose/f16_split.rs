//! Splits f32 values into two f16 parts.
//!
//! `x ≈ high + low`, with `high = f16(x)` and `low = f16(x − high)`; the error is at most 2⁻²² of x
//! or 2⁻²⁵. A product with an f16 value is then two f16 products, which a GPU's matrix units
//! accumulate in f32. A value that was rounded to f16 has one part and needs one product.

use gristmill_uop::{Arg, Graph, Id, Node, Op, Scalar};

/// Returns whether all values of a tensor are f16, read as f32. Looks through movements.
pub fn are_halves(g: &Graph, x: Id) -> bool {
    operand(g, x).is_some_and(|half| g.scalar(half) == Scalar::F16)
}

/// Returns the f16 or bf16 values that a tensor reads as f32. Looks through movements.
pub fn operand(g: &Graph, x: Id) -> Option<Id> {
    let n = &g[x];
    match n.op {
        Op::Cast if n.dtype.scalar == Scalar::F32 && g.scalar(n.src[0]).is_half() => Some(n.src[0]),
        Op::Gather | Op::Reshape | Op::Permute | Op::Expand | Op::Shrink => operand(g, n.src[0]),
        _ => None,
    }
}

/// Returns `x` with f16 type; [`are_halves`] must hold.
pub fn narrow(g: &mut Graph, x: Id) -> Id {
    let n = g[x].clone();
    if n.op == Op::Cast {
        return n.src[0];
    }
    let mut src = n.src;
    src[0] = narrow(g, src[0]);
    let dtype = g[src[0]].dtype;
    g.intern(Node {
        op: n.op,
        dtype,
        src,
        arg: n.arg,
    })
}

/// Returns the reduction below the movements of `x`, if there is one.
pub fn computed(g: &Graph, x: Id) -> Vec<Id> {
    match g[x].op {
        Op::Reduce => vec![x],
        op if op.is_movement() => computed(g, g[x].src[0]),
        _ => vec![],
    }
}

/// Returns whether `x`, or every part of a concatenation, was rounded to f16 where it is computed.
pub fn rounded(g: &Graph, x: Id) -> bool {
    let n = &g[x];
    match n.op {
        Op::Cast => n.dtype.scalar == Scalar::F32 && g.scalar(n.src[0]) == Scalar::F16,
        Op::Cat => n.src[..n.src.len() - 1].iter().all(|&s| rounded(g, s)),
        _ => false,
    }
}

/// f16 parts that operands of MMA products are read from.
pub struct Parts {
    /// f16 `[.., 2, d]`; `[.., 1, d]` for values that were rounded to f16.
    pub all: Id,
    /// Node that computes the parts, before they are reshaped.
    pub stage: Id,
}

/// Splits `x [.., d]` times `factor` into its f16 parts; rounded values have one.
///
/// A concatenation is split part by part, each where it is computed.
pub fn parts(g: &mut Graph, x: Id, factor: f64) -> Parts {
    if factor == 1.0 && rounded(g, x) {
        let stage = half(g, x);
        let mut dims = g.shape(stage);
        dims.insert(dims.len() - 1, g.int(1));
        return Parts {
            all: g.reshape(stage, &dims),
            stage,
        };
    }
    let all = split(g, x, factor);
    Parts { all, stage: all }
}

/// Returns rounded values with f16 type.
fn half(g: &mut Graph, x: Id) -> Id {
    let n = g[x].clone();
    if n.op == Op::Cast {
        return n.src[0];
    }
    let all: Vec<Id> = n.src[..n.src.len() - 1]
        .iter()
        .map(|&s| half(g, s))
        .collect();
    let Arg::Axes(axes) = &n.arg else {
        unreachable!("what is joined is joined along an axis")
    };
    g.cat(&all, axes[0] as usize)
}

/// Splits into two f16 parts, `[.., 2, d]`.
fn split(g: &mut Graph, x: Id, factor: f64) -> Id {
    let rank = g.shape(x).len();
    let n = g[x].clone();
    if n.op == Op::Cat && n.arg == Arg::Axes([rank as u8 - 1].into_iter().collect()) {
        let all: Vec<Id> = n.src[..n.src.len() - 1]
            .iter()
            .map(|&s| split(g, s, factor))
            .collect();
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
