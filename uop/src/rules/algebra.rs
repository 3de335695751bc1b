//! Algebraic rules that hold for every dtype they admit: constants, identities, casts, selects.

use super::rule::rules;
use crate::dtype::Scalar;
use crate::fold::{self, Value};
use crate::graph::Graph;
use crate::id::Id;
use crate::node::{Arg, Node};
use crate::op::Op;

rules! { RULES:
    "f(expand(constant), y) -> f(constant, y)" [Add Sub Mul Div IDiv Mod Max Min And Or Xor Shl Shr Lt Eq Where Fma] expanded_constant;
    "f(constants) -> constant" [Cast Neg Exp Exp2 Log Sqrt Recip Round Add Sub Mul Div IDiv Mod Max Min And Or Xor Shl Shr Lt Eq Where] fold_constants;
    "table[constant] -> constant" [Table] table_constant;
    "bitcast(constant) -> constant" [Bitcast] bitcast_constant;
    "bitcast(bitcast(x)) -> bitcast(x)" [Bitcast] bitcast_bitcast;
    "one value only -> constant" [Lt Eq Mod IDiv And Shr Min Max] single_value;
    "splat(constant) -> constant" [Splat] splat_constant;
    "x * 1 -> x" [Mul Div] times_one;
    "x * 0 -> 0 (integers)" [Mul And] times_zero;
    "x + 0 -> x (integers)" [Add Or Xor Shl Shr] plus_zero;
    "constant first -> constant last" [Add Mul And Or Xor Max Min Eq] constant_last;
    "true ? a : b -> a" [Where] where_constant;
    "c ? a : a -> a" [Where] where_same;
    "max(x, y) -> x where x >= y" [Max] max_bounds;
    "min(x, y) -> x where x <= y" [Min] min_bounds;
    "min(min(x, y), y) -> min(x, y)" [Min Max] again;
    "max(min(x, y), z) -> min(max(x, z), y) where z <= y" [Max] lower_bound_first;
    "x & mask -> x where x fits" [And] mask_fits;
    "(x & a) & b -> x & (a & b)" [And] mask_mask;
    "(x >> a) >> b -> x >> (a + b)" [Shr] shift_shift;
    "((x >> a) & m) << b -> (x << (b - a)) & (m << b)" [Shl] shift_mask_shift;
    "cast(cast(x)) -> cast(x) where nothing is lost" [Cast] cast_cast;
    "cast(x) -> x of the same dtype" [Cast Bitcast] cast_same;
}

fn value(g: &Graph, id: Id) -> Option<Value> {
    g.int_value(id)
        .map(Value::Int)
        .or_else(|| g.float_value(id).map(Value::Float))
}

fn constant(g: &mut Graph, like: &Node, v: Value) -> Id {
    match v {
        Value::Int(v) => g.int_of(like.dtype, v),
        Value::Float(v) => g.constant(like.dtype, v),
    }
}

/// With a tensor operand, a constant needs no shape of its own; without one, other rules match it.
fn expanded_constant(g: &mut Graph, n: &Node) -> Option<Id> {
    let shaped = |g: &Graph, id: &Id| !g.dims(*id).is_empty();
    if n.src.iter().filter(|s| shaped(g, s)).count() < 2 {
        return None;
    }
    let (at, scalar) = n.src.iter().enumerate().find_map(|(i, &s)| {
        let mut x = s;
        while matches!(g[x].op, Op::Expand | Op::Reshape) {
            x = g[x].src[0];
        }
        (x != s && g[x].op == Op::Const).then_some((i, x))
    })?;
    let mut src = n.src.clone();
    src[at] = scalar;
    Some(g.build(n.op, n.dtype, src, n.arg.clone()))
}

fn fold_constants(g: &mut Graph, n: &Node) -> Option<Id> {
    // Libraries differ in the last place of these, so the device computes them.
    if matches!(n.op, Op::Exp | Op::Exp2 | Op::Log) {
        return None;
    }
    let values: Option<Vec<Value>> = n.src.iter().map(|&s| value(g, s)).collect();
    let v = fold::apply(n.op, &values?, n.dtype.scalar)?;
    Some(constant(g, n, v))
}

fn table_constant(g: &mut Graph, n: &Node) -> Option<Id> {
    let Arg::Ints(t) = &n.arg else { return None };
    let v = *t.get(g.int_value(n.src[0])? as usize)?;
    Some(g.int_of(n.dtype, v as i64))
}

fn bitcast_constant(g: &mut Graph, n: &Node) -> Option<Id> {
    let from = g[n.src[0]].dtype;
    let x = value(g, n.src[0])?;
    let v = x.bitcast(from.scalar, n.dtype.scalar);
    // A NaN's payload does not survive the conversion to f64.
    let kept = from.lanes == n.dtype.lanes && !x.float().is_nan() && !v.float().is_nan();
    kept.then(|| constant(g, n, v))
}

fn bitcast_bitcast(g: &mut Graph, n: &Node) -> Option<Id> {
    let inner = &g[n.src[0]];
    let x = (inner.op == Op::Bitcast).then(|| inner.src[0])?;
    Some(g.build(Op::Bitcast, n.dtype, [x].as_slice(), Arg::None))
}

fn single_value(g: &mut Graph, n: &Node) -> Option<Id> {
    let (lo, hi) = crate::bounds::infer_bounds(g, n)?;
    (lo == hi && (n.dtype.scalar != Scalar::I64 || n.dtype.lanes == 1))
        .then(|| g.int_of(n.dtype, lo))
}

fn splat_constant(g: &mut Graph, n: &Node) -> Option<Id> {
    value(g, n.src[0]).map(|v| constant(g, n, v))
}

fn times_one(g: &mut Graph, n: &Node) -> Option<Id> {
    (value(g, n.src[1])?.float() == 1.0).then_some(n.src[0])
}

fn times_zero(g: &mut Graph, n: &Node) -> Option<Id> {
    (g.int_value(n.src[1])? == 0).then_some(n.src[1])
}

fn plus_zero(g: &mut Graph, n: &Node) -> Option<Id> {
    (g.int_value(n.src[1])? == 0).then_some(n.src[0])
}

fn constant_last(g: &mut Graph, n: &Node) -> Option<Id> {
    let first = value(g, n.src[0]).is_some();
    (first && value(g, n.src[1]).is_none()).then(|| g.binary(n.op, n.src[1], n.src[0]))
}

fn where_constant(g: &mut Graph, n: &Node) -> Option<Id> {
    let (lo, hi) = g.bounds(n.src[0])?;
    (lo == hi).then(|| n.src[if lo != 0 { 1 } else { 2 }])
}

fn where_same(_: &mut Graph, n: &Node) -> Option<Id> {
    (n.src[1] == n.src[2]).then_some(n.src[1])
}

fn max_bounds(g: &mut Graph, n: &Node) -> Option<Id> {
    let (a, b) = (g.bounds(n.src[0])?, g.bounds(n.src[1])?);
    (a.0 >= b.1)
        .then_some(n.src[0])
        .or((b.0 >= a.1).then_some(n.src[1]))
}

fn min_bounds(g: &mut Graph, n: &Node) -> Option<Id> {
    let (a, b) = (g.bounds(n.src[0])?, g.bounds(n.src[1])?);
    (a.1 <= b.0)
        .then_some(n.src[0])
        .or((b.1 <= a.0).then_some(n.src[1]))
}

fn again(g: &mut Graph, n: &Node) -> Option<Id> {
    let has = |outer: Id, inner: Id| g[outer].op == n.op && g[outer].src.contains(&inner);
    let (a, b) = (n.src[0], n.src[1]);
    has(a, b).then_some(a).or(has(b, a).then_some(b))
}

/// Normalises a clamp to min-of-max. The max-of-min form is miscompiled by CUDA's assembler (13.0,
/// sm_90): it derives `max(min(x, y), 0) == y` from a flag that says whether `x` was selected, as
/// it does for `max(min(x, y), 0) == x`.
fn lower_bound_first(g: &mut Graph, n: &Node) -> Option<Id> {
    let [x, y, z] = g.bounded_above_first(n)?;
    let held = g.max(x, z);
    Some(g.min(held, y))
}

fn mask_fits(g: &mut Graph, n: &Node) -> Option<Id> {
    let mask = g.int_value(n.src[1])?;
    let (lo, hi) = g.bounds(n.src[0])?;
    (lo >= 0 && mask >= 0 && (mask & (mask + 1)) == 0 && hi <= mask).then_some(n.src[0])
}

fn mask_mask(g: &mut Graph, n: &Node) -> Option<Id> {
    let inner = g[n.src[0]].clone();
    if inner.op != Op::And {
        return None;
    }
    let both = g.int_value(inner.src[1])? & g.int_value(n.src[1])?;
    let both = g.int_of(n.dtype, both);
    Some(g.and(inner.src[0], both))
}

fn shift_shift(g: &mut Graph, n: &Node) -> Option<Id> {
    let inner = g[n.src[0]].clone();
    if inner.op != Op::Shr {
        return None;
    }
    let (a, b) = (g.int_value(inner.src[1])?, g.int_value(n.src[1])?);
    // A shift by the type's width or more is undefined on targets.
    let bits = 8 * n.dtype.scalar.bytes() as i64;
    if a < 0 || b < 0 || a.checked_add(b)? >= bits {
        return None;
    }
    let both = g.int_of(n.dtype, a + b);
    Some(g.shr(inner.src[0], both))
}

/// Saves a shift of u32 words. Bits shifted out at the top are masked on both sides.
fn shift_mask_shift(g: &mut Graph, n: &Node) -> Option<Id> {
    let b = g.int_value(n.src[1])?;
    let masked = g[n.src[0]].clone();
    if n.dtype.scalar != Scalar::U32 || masked.op != Op::And || !(0..32).contains(&b) {
        return None;
    }
    let m = g.int_value(masked.src[1])?;
    let shifted = g[masked.src[0]].clone();
    let (x, a) = match shifted.op {
        Op::Shr => (shifted.src[0], g.int_value(shifted.src[1])?),
        _ => return None,
    };
    if !(0..32).contains(&a) || m << b > u32::MAX as i64 {
        return None;
    }
    let by = g.int_of(n.dtype, (b - a).abs());
    let x = if b > a { g.shl(x, by) } else { g.shr(x, by) };
    let m = g.int_of(n.dtype, m << b);
    Some(g.and(x, m))
}

fn cast_cast(g: &mut Graph, n: &Node) -> Option<Id> {
    let inner = &g[n.src[0]];
    if inner.op != Op::Cast {
        return None;
    }
    let (x, middle, to) = (inner.src[0], inner.dtype.scalar, n.dtype.scalar);
    let from = g.scalar(x);
    // The middle type must represent every value of x.
    let within = |(lo, hi): (i64, i64), r: (i64, i64)| lo >= r.0 && hi <= r.1;
    let kept = match (g.bounds(x), middle.range()) {
        (Some(v), Some(m)) => within(v, m),
        // An integer that the float represents exactly. In the conversion back, a float saturates
        // while an integer wraps.
        (Some(v), None) => {
            let exact = match middle {
                Scalar::F64 => 1 << 53,
                Scalar::F32 => 1 << 24,
                Scalar::F16 => 1 << 11,
                _ => 1 << 8,
            };
            within(v, (-exact, exact))
                && to
                    .range()
                    .is_none_or(|t| to == Scalar::Bool || within(v, t))
        }
        (None, None) => from.is_float() && middle.bytes() > from.bytes(),
        (None, Some(_)) => false,
    };
    (kept && from != Scalar::Bool).then(|| g.cast(x, to))
}

fn cast_same(g: &mut Graph, n: &Node) -> Option<Id> {
    (g[n.src[0]].dtype == n.dtype).then_some(n.src[0])
}
