//! Rules that turn a contraction of a packed weight with int8 activations into integer dot
//! products.
//!
//! They reassociate sums and products of floats, so they are not always-on: [`derive`] applies them
//! where the compiler has chosen that form.
//!
//! With `w = d·(q − 8)` and `x = e·y`, where neither `d` nor `e` depends on the element k and `q`
//! and `y` are small integers, `Σ_k w·x` becomes `d·e·float(Σ_k q·y + (−8)·Σ_k y)`, and `Σ_k q·y`
//! becomes sums of four byte products, `DOT4`.

use super::always::count_dot;
use super::lift;
use super::rule::rules;
use crate::dtype::Scalar;
use crate::graph::Graph;
use crate::id::Id;
use crate::node::{Arg, Node, Sources};
use crate::op::{Op, ReduceOp};
use rustc_hash::FxHashMap;

rules! { RULES:
    "sum(a*b) of signed bytes -> sum(signed dot4(words))" [Reduce] signed_words;
    "sum((a + b)*x) -> sum(a*x) + sum(b*x), b free of the ranges" [Reduce] distribute;
    "sum(f*x) -> f*sum(x), f free of the ranges" [Reduce] hoist;
    "sum(float(a)*float(b)) -> float(sum(a*b)) where exact" [Reduce] whole;
    "sum(table[i]*b) -> sum((table - c)[i]*b) + c*sum(b)" [Reduce] positive_table;
    "sum(a*b) of bytes -> sum(dot4(words))" [Reduce] words;
    "sum(a*b) of rows in eight bits -> sum(signed dot4(words))" [Reduce] rows;
}

/// Applies the rules selected by `on` below `root` until none fires.
pub fn derive(g: &mut Graph, root: Id, on: &dyn Fn(&str) -> bool) -> Id {
    let mut done = FxHashMap::default();
    rewrite(g, root, on, &mut done)
}

fn rewrite(g: &mut Graph, id: Id, on: &dyn Fn(&str) -> bool, done: &mut FxHashMap<Id, Id>) -> Id {
    if let Some(&new) = done.get(&id) {
        return new;
    }
    let node = g[id].clone();
    let mut may = RULES
        .iter()
        .enumerate()
        .filter(|(_, r)| r.ops.contains(&node.op) && on(r.name));
    let fired = may.find_map(|(number, r)| Some((number, (r.apply)(g, &node)?)));
    let new = match fired {
        Some((number, next)) => {
            count_dot(g, number, &node, next);
            rewrite(g, next, on, done)
        }
        None => {
            let src: Sources = node.src.iter().map(|&s| rewrite(g, s, on, done)).collect();
            if src == node.src {
                id
            } else {
                g.build(node.op, node.dtype, src, node.arg)
            }
        }
    };
    done.insert(id, new);
    new
}

/// Returns the value and the ranges of a sum.
fn sum_of(n: &Node) -> Option<(Id, &[Id])> {
    matches!(n.arg, Arg::Reduce(ReduceOp::Add, _)).then(|| (n.src[0], &n.src[1..]))
}

fn is_free(g: &Graph, id: Id, ranges: &[Id]) -> bool {
    !g.free_ranges(id).iter().any(|r| ranges.contains(r))
}

/// Collects the factors of a product; negation counts as a factor of −1.
fn factors(g: &mut Graph, id: Id, out: &mut Vec<Id>) {
    let n = g[id].clone();
    match n.op {
        Op::Mul => {
            factors(g, n.src[0], out);
            factors(g, n.src[1], out);
        }
        Op::Neg => {
            out.push(g.constant(n.dtype, -1.0));
            factors(g, n.src[0], out);
        }
        _ => out.push(id),
    }
}

/// Multiplies factors grouped by their ranges, groups with fewer ranges first. Factors shared by
/// many results are then computed once for them.
fn product(g: &mut Graph, factors: &[Id]) -> Option<Id> {
    let mut groups: Vec<(Vec<Id>, Id)> = Vec::new();
    for &f in factors {
        let free = g.free_ranges(f).to_vec();
        match groups.iter_mut().find(|x| x.0 == free) {
            Some(x) => x.1 = g.mul(x.1, f),
            None => groups.push((free, f)),
        }
    }
    groups.sort_by_key(|x| x.0.len());
    groups.into_iter().map(|x| x.1).reduce(|a, b| g.mul(a, b))
}

fn distribute(g: &mut Graph, n: &Node) -> Option<Id> {
    let (value, ranges) = sum_of(n)?;
    let mut all = Vec::new();
    factors(g, value, &mut all);
    // A sum with only one side that depends on the ranges: once split, the other side can be
    // hoisted.
    let (at, minus) = all.iter().enumerate().find_map(|(i, &f)| {
        let m = &g[f];
        if !matches!(m.op, Op::Add | Op::Sub) || is_free(g, f, ranges) {
            return None;
        }
        (is_free(g, m.src[0], ranges) != is_free(g, m.src[1], ranges))
            .then_some((i, m.op == Op::Sub))
    })?;
    let (a, b) = (g[all[at]].src[0], g[all[at]].src[1]);
    let mut rest = all.clone();
    rest.remove(at);
    let mut side = |x: Id, negated: bool| {
        let mut f = rest.clone();
        f.push(x);
        if negated {
            f.push(g.constant(n.dtype, -1.0));
        }
        let value = product(g, &f).unwrap_or(x);
        g.reduce_ranges(value, ranges, ReduceOp::Add)
    };
    let (a, b) = (side(a, false), side(b, minus));
    Some(g.add(a, b))
}

fn hoist(g: &mut Graph, n: &Node) -> Option<Id> {
    let (value, ranges) = sum_of(n)?;
    let mut all = Vec::new();
    factors(g, value, &mut all);
    let (free, bound): (Vec<Id>, Vec<Id>) = all.into_iter().partition(|&f| is_free(g, f, ranges));
    if free.is_empty() || bound.is_empty() {
        return None;
    }
    let inner = product(g, &bound)?;
    let sum = g.reduce_ranges(inner, ranges, ReduceOp::Add);
    let mut all = free;
    all.push(sum);
    product(g, &all)
}

fn whole(g: &mut Graph, n: &Node) -> Option<Id> {
    let (value, ranges) = sum_of(n)?;
    let mut all = Vec::new();
    factors(g, value, &mut all);
    let mut numbers = Vec::new();
    let mut most = ranges
        .iter()
        .try_fold(1i64, |p, &r| p.checked_mul(g.bounds(g[r].src[0])?.1))?;
    for &f in &all {
        let m = &g[f];
        let x = *m.src.first()?;
        if m.op != Op::Cast || m.dtype.scalar != Scalar::F32 || !g.scalar(x).is_int() {
            return None;
        }
        let (lo, hi) = g.bounds(x)?;
        most = most.checked_mul(lo.abs().max(hi.abs()))?;
        numbers.push(x);
    }
    if most > i32::MAX as i64 {
        return None;
    }
    let numbers: Vec<Id> = numbers
        .into_iter()
        .map(|x| g.cast(x, Scalar::I32))
        .collect();
    let inner = numbers.into_iter().reduce(|a, b| g.mul(a, b))?;
    let sum = g.reduce_ranges(inner, ranges, ReduceOp::Add);
    Some(g.cast(sum, Scalar::F32))
}

/// Returns the two factors of an i32 sum of products.
fn pair(g: &Graph, n: &Node) -> Option<[Id; 2]> {
    let (value, _) = sum_of(n)?;
    let m = &g[value];
    (m.op == Op::Mul && m.dtype == Scalar::I32.one()).then(|| [m.src[0], m.src[1]])
}

fn positive_table(g: &mut Graph, n: &Node) -> Option<Id> {
    let [a, b] = pair(g, n)?;
    let (t, b) = if g[a].op == Op::Table { (a, b) } else { (b, a) };
    let (Op::Table, Arg::Ints(entries)) = (g[t].op, g[t].arg.clone()) else {
        return None;
    };
    let lo = *entries.iter().min().filter(|&&lo| lo < 0)?;
    let shifted: Vec<i32> = entries.iter().map(|v| v - lo).collect();
    let positive = g.table(g[t].src[0], &shifted);
    let first = g.mul(positive, b);
    let first = g.reduce_ranges(first, &n.src[1..], ReduceOp::Add);
    let second = g.reduce_ranges(b, &n.src[1..], ReduceOp::Add);
    let lo = g.int_of(Scalar::I32, lo as i64);
    let second = g.mul(second, lo);
    Some(g.add(first, second))
}

/// Name of the rule for machines with `signed_codes`: codes keep their zero point.
pub const SIGNED: &str = "sum(a*b) of signed bytes -> sum(signed dot4(words))";

fn signed_words(g: &mut Graph, n: &Node) -> Option<Id> {
    let [a, b] = pair(g, n)?;
    let (&byte, rest) = n.src[1..].split_last()?;
    // Without a zero point, unsigned bytes suffice.
    let zero = |g: &Graph, x: Id| g[x].op == Op::Add && g.int_value(g[x].src[1]).is_some();
    if g.int_value(g[byte].src[0]) != Some(4)
        || !(zero(g, a) || zero(g, b))
        || ![a, b].iter().all(|&x| g.within(x, -128, 127))
    {
        return None;
    }
    let (a, b) = if zero(g, a) { (a, b) } else { (b, a) };
    let ((a, shift), b) = (lift::signed_word(g, a, byte)?, lift::word(g, b, byte));
    let none = g.int_of(Scalar::I32, 0);
    let dot = g.signed_dot4(a, b, none);
    let sum = if rest.is_empty() {
        dot
    } else {
        g.reduce_ranges(dot, rest, ReduceOp::Add)
    };
    // All terms are multiples of the power of two, so the shift is exact.
    let by = g.int_of(Scalar::I32, shift);
    Some(if shift == 0 { sum } else { g.shr(sum, by) })
}

fn words(g: &mut Graph, n: &Node) -> Option<Id> {
    let [a, b] = pair(g, n)?;
    let (a, b) = if g.within(a, 0, 255) { (a, b) } else { (b, a) };
    if !g.within(a, 0, 255) || !g.within(b, -128, 127) {
        return None;
    }
    let most = g.bounds(a)?.1;
    lifted(g, n, [a, b], |g, a, b, zero| g.dot4(a, b, zero, most))
}

/// Name of the rule for two signed operands, integers from −127 to 127.
pub const ROWS: &str = "sum(a*b) of rows in eight bits -> sum(signed dot4(words))";

fn rows(g: &mut Graph, n: &Node) -> Option<Id> {
    let [a, b] = pair(g, n)?;
    let both = [a, b].iter().all(|&x| g.bounds(x) == Some((-128, 127)));
    if both {
        lifted(g, n, [a, b], Graph::signed_dot4)
    } else {
        None
    }
}

/// Rewrites a sum with a last range of four bytes as a sum of word dot products.
fn lifted(
    g: &mut Graph,
    n: &Node,
    [a, b]: [Id; 2],
    dot: impl Fn(&mut Graph, Id, Id, Id) -> Id,
) -> Option<Id> {
    let (&byte, rest) = n.src[1..].split_last()?;
    if g.int_value(g[byte].src[0]) != Some(4) {
        return None;
    }
    let (a, b) = (lift::word(g, a, byte), lift::word(g, b, byte));
    let zero = g.int_of(Scalar::I32, 0);
    let dot = dot(g, a, b, zero);
    Some(if rest.is_empty() {
        dot
    } else {
        g.reduce_ranges(dot, rest, ReduceOp::Add)
    })
}
