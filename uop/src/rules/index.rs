//! Index arithmetic: sums in normal form, floor division and modulo by constants, with bounds.

use super::rule::rules;
use crate::dtype::Scalar;
use crate::graph::Graph;
use crate::id::Id;
use crate::linear::Linear;
use crate::node::Node;
use crate::op::Op;

rules! { RULES:
    "(x / c)*c + x % c -> x" [Add] rejoined;
    "a + b -> sum in normal form" [Add] normal_sum;
    "c * (a + b) -> c*a + c*b" [Mul] normal_product;
    "(c*a + r) / c -> a + r/c" [IDiv] divide_sum;
    "(x / a) / b -> x / (a*b)" [IDiv] divide_divide;
    "(c*a + r) % c -> r % c" [Mod] modulo_sum;
    "(x % (a*b)) % b -> x % b" [Mod] modulo_modulo;
    "(x % (a*b)) / b -> (x / b) % a" [IDiv] divide_modulo;
    "x << c -> x * 2^c (indices)" [Shl] shift_is_product;
    "x < c -> sums of like terms compared" [Lt Eq] compare_sums;
    "narrow(a + b) -> narrow(a) + narrow(b) where all fit" [Cast] narrow_sum;
}

fn scalar_int(n: &Node) -> bool {
    n.dtype.lanes == 1 && n.dtype.scalar.is_int()
}

/// Returns the positive constant divisor of a division or modulo. To drop a remainder, its bounds
/// must start at 0.
fn divisor(g: &Graph, n: &Node) -> Option<i64> {
    (scalar_int(n))
        .then(|| g.int_value(n.src[1]))
        .flatten()
        .filter(|&c| c > 0)
}

fn normal_sum(g: &mut Graph, n: &Node) -> Option<Id> {
    if !scalar_int(n) {
        return None;
    }
    let mut sum = g.linear(n.src[0]);
    sum.add_scaled(&g.linear(n.src[1]), 1);
    Some(g.from_linear(&sum, n.dtype))
}

/// Within a sum, `(x / c)*c*k + (x % c)*k` is `x*k`.
fn rejoined(g: &mut Graph, n: &Node) -> Option<Id> {
    if !scalar_int(n) {
        return None;
    }
    let mut sum = g.linear(n.src[0]);
    sum.add_scaled(&g.linear(n.src[1]), 1);
    let pair = sum.terms.iter().find_map(|&(rest, k)| {
        let c = if g[rest].op == Op::Mod {
            divisor(g, &g[rest])
        } else {
            None
        }?;
        let is_whole = |t: Id, by: i64| {
            g[t].op == Op::IDiv && g[t].src == g[rest].src && Some(by) == k.checked_mul(c)
        };
        let &(whole, by) = sum.terms.iter().find(|&&(t, by)| is_whole(t, by))?;
        Some((whole, by, rest, k))
    });
    let (whole, by, rest, k) = pair?;
    sum.add_scaled(&g.linear(whole), -by);
    sum.add_scaled(&g.linear(rest), -k);
    sum.add_scaled(&g.linear(g[rest].src[0]), k);
    Some(g.from_linear(&sum, n.dtype))
}

fn normal_product(g: &mut Graph, n: &Node) -> Option<Id> {
    if !scalar_int(n) {
        return None;
    }
    let c = g.int_value(n.src[1])?;
    let mut sum = Linear::default();
    sum.add_scaled(&g.linear(n.src[0]), c);
    Some(g.from_linear(&sum, n.dtype))
}

/// Greatest common divisor, never negative.
pub fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

/// Splits `sum` into `d*y + r`, 0 <= r < d.
///
/// `d` is the largest divisor of `c` with 1 < d < c that permits it. Returns `d`, `y` and `r`.
fn carry_free(g: &Graph, sum: &Linear, c: i64) -> Option<(i64, Linear, Linear)> {
    let whole = sum.terms.iter().fold(c, |d, t| gcd(d, t.1));
    let mut factors: Vec<i64> = sum
        .terms
        .iter()
        .map(|t| gcd(c, t.1))
        .chain([whole])
        .collect();
    factors.sort_unstable();
    factors
        .into_iter()
        .rev()
        .filter(|&d| d > 1 && d < c)
        .find_map(|d| {
            let (y, r) = sum.split(d);
            let (lo, hi) = g.linear_bounds(&r)?;
            (lo >= 0 && hi < d).then_some((d, y, r))
        })
}

fn divide_sum(g: &mut Graph, n: &Node) -> Option<Id> {
    let c = divisor(g, n)?;
    if c == 1 {
        return Some(n.src[0]);
    }
    let sum = g.linear(n.src[0]);
    g.exact_bounds(&sum, n.dtype.scalar)?;
    let (mut quotient, rest) = sum.split(c);
    let rest_quotient = match g.exact_bounds(&rest, n.dtype.scalar)? {
        (lo, hi) if lo >= 0 && hi < c => None,
        _ => match carry_free(g, &rest, c) {
            // (d*y + r) / (d*e) = y / e for 0 <= r < d
            Some((d, y, _)) => {
                let y = g.from_linear(&y, n.dtype);
                let e = g.int_of(n.dtype, c / d);
                Some(g.idiv(y, e))
            }
            None if quotient == Linear::default() => return None,
            None => {
                let rest = g.from_linear(&rest, n.dtype);
                let c = g.int_of(n.dtype, c);
                Some(g.idiv(rest, c))
            }
        },
    };
    if let Some(r) = rest_quotient {
        quotient.add_scaled(&g.linear(r), 1);
    }
    Some(g.from_linear(&quotient, n.dtype))
}

fn divide_divide(g: &mut Graph, n: &Node) -> Option<Id> {
    let b = divisor(g, n)?;
    let inner = g[n.src[0]].clone();
    if inner.op != Op::IDiv {
        return None;
    }
    let a = g.int_value(inner.src[1]).filter(|&a| a > 0)?;
    let ab = a
        .checked_mul(b)
        .filter(|&ab| ab <= n.dtype.scalar.range().map_or(0, |r| r.1))?;
    let ab = g.int_of(n.dtype, ab);
    Some(g.idiv(inner.src[0], ab))
}

fn modulo_sum(g: &mut Graph, n: &Node) -> Option<Id> {
    let c = divisor(g, n)?;
    if c == 1 {
        return Some(g.int_of(n.dtype, 0));
    }
    let sum = g.linear(n.src[0]);
    g.exact_bounds(&sum, n.dtype.scalar)?;
    let (quotient, mut rest) = sum.split(c);
    for t in &mut rest.terms {
        t.1 = t.1.rem_euclid(c);
    }
    let (lo, hi) = g.exact_bounds(&rest, n.dtype.scalar)?;
    if lo >= 0 && hi < c {
        return Some(g.from_linear(&rest, n.dtype));
    }
    if let Some((d, y, mut out)) = carry_free(g, &rest, c) {
        // (d*y + r) % (d*e) = d*(y % e) + r for 0 <= r < d
        let y = g.from_linear(&y, n.dtype);
        let e = g.int_of(n.dtype, c / d);
        let y = g.modulo(y, e);
        out.add_scaled(&g.linear(y), d);
        return Some(g.from_linear(&out, n.dtype));
    }
    (quotient != Linear::default() || rest != sum).then(|| {
        let rest = g.from_linear(&rest, n.dtype);
        let c = g.int_of(n.dtype, c);
        g.modulo(rest, c)
    })
}

fn modulo_modulo(g: &mut Graph, n: &Node) -> Option<Id> {
    let b = divisor(g, n)?;
    let inner = g[n.src[0]].clone();
    (inner.op == Op::Mod
        && g.int_value(inner.src[1])
            .is_some_and(|ab| ab > 0 && ab % b == 0))
    .then(|| g.modulo(inner.src[0], n.src[1]))
}

fn divide_modulo(g: &mut Graph, n: &Node) -> Option<Id> {
    let b = divisor(g, n)?;
    let inner = g[n.src[0]].clone();
    if inner.op != Op::Mod {
        return None;
    }
    let ab = g.int_value(inner.src[1])?;
    if ab <= 0 || ab % b != 0 {
        return None;
    }
    let x = g.idiv(inner.src[0], n.src[1]);
    let a = g.int_of(n.dtype, ab / b);
    Some(g.modulo(x, a))
}

fn shift_is_product(g: &mut Graph, n: &Node) -> Option<Id> {
    if n.dtype != Scalar::I64.one() {
        return None;
    }
    let c = g.int_value(n.src[1]).filter(|c| (0..62).contains(c))?;
    let factor = g.int_of(n.dtype, 1 << c);
    Some(g.mul(n.src[0], factor))
}

fn compare_sums(g: &mut Graph, n: &Node) -> Option<Id> {
    let dtype = g[n.src[0]].dtype;
    if dtype != Scalar::I64.one() {
        return None;
    }
    // The difference must fit in an i64.
    let (a, b) = (g.bounds(n.src[0])?, g.bounds(n.src[1])?);
    a.0.checked_sub(b.1).and(a.1.checked_sub(b.0))?;
    let mut difference = g.linear(n.src[0]);
    difference.add_scaled(&g.linear(n.src[1]), -1);
    let (lo, hi) = g.linear_bounds(&difference)?;
    let answer = match n.op {
        Op::Lt if hi < 0 => 1,
        Op::Lt if lo >= 0 => 0,
        Op::Eq if lo > 0 || hi < 0 => 0,
        Op::Eq if lo == 0 && hi == 0 => 1,
        _ => return None,
    };
    Some(g.int_of(n.dtype, answer))
}

fn narrow_sum(g: &mut Graph, n: &Node) -> Option<Id> {
    let x = g[n.src[0]].clone();
    if n.dtype != Scalar::I32.one()
        || x.dtype != Scalar::I64.one()
        || !matches!(x.op, Op::Add | Op::Mul | Op::IDiv | Op::Mod)
    {
        return None;
    }
    let (lo, hi) = Scalar::I32.range()?;
    if !x.src.iter().all(|&s| g.within(s, lo, hi)) || !g.within(n.src[0], lo, hi) {
        return None;
    }
    let (a, b) = (g.cast(x.src[0], Scalar::I32), g.cast(x.src[1], Scalar::I32));
    Some(g.binary(x.op, a, b))
}
