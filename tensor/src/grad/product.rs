//! Sums of products as contractions.

use super::step::dims_of;
use crate::tensor::{Dim, Tensor};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::{Id, Op};

/// Sums `x` over axes, which are removed.
///
/// With half-precision operands, a matrix product, of two factors that are each repeated along an
/// axis of the other, becomes a contraction of their last axes, which matrix units compute: summed
/// axes come last, and its factors are rounded. In f32 axes stay in the order in which a CPU reads
/// a weight.
pub(super) fn summed<'g>(x: Tensor<'g>, axes: &[usize], operands: Scalar) -> Tensor<'g> {
    if operands == Scalar::F32 {
        return x.sum(axes);
    }
    // Products that share a factor, such as gate and up, add gradients before they are summed.
    if let Some([a, b]) = terms(x)
        && (contains_product(a, axes) || contains_product(b, axes))
    {
        return summed(a, axes, operands) + summed(b, axes, operands);
    }
    let Some(factors) = factors(x, axes) else {
        return x.sum(axes);
    };
    let kept = (0..x.rank()).filter(|a| !axes.contains(a));
    let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
    let last: Vec<usize> = (order.len() - axes.len()..order.len()).collect();
    let [a, b] = factors.map(|side| turned(side, &order, operands));
    (a * b).sum(&last)
}

/// The terms of an addition.
fn terms<'g>(x: Tensor<'g>) -> Option<[Tensor<'g>; 2]> {
    let c = x.capture();
    let g = c.graph.borrow();
    match &g[x.id].src[..] {
        &[a, b] if g[x.id].op == Op::Add => Some([c.tensor(a), c.tensor(b)]),
        _ => None,
    }
}

/// Returns true for a matrix product and for additions of some.
fn contains_product(x: Tensor<'_>, axes: &[usize]) -> bool {
    match terms(x) {
        Some(terms) => terms.into_iter().any(|x| contains_product(x, axes)),
        None => factors(x, axes).is_some(),
    }
}

/// The factors of a matrix product that is summed over `axes`.
fn factors<'g>(x: Tensor<'g>, axes: &[usize]) -> Option<[Tensor<'g>; 2]> {
    let c = x.capture();
    let g = c.graph.borrow();
    let n = &g[x.id];
    let &[a, b] = &n.src[..] else { return None };
    let repeats = |side: Id, axis: usize| {
        g[side].op == Op::Expand && g.dims(g[side].src[0])[axis] != g.dims(side)[axis]
    };
    let alone = |side: Id, other: Id| {
        let mut kept = (0..x.rank()).filter(|axis| !axes.contains(axis));
        kept.any(|axis| repeats(side, axis) && !repeats(other, axis))
    };
    let is_product = n.op == Op::Mul && alone(a, b) && alone(b, a);
    let whole = axes
        .iter()
        .all(|&axis| !repeats(a, axis) && !repeats(b, axis));
    (is_product && whole).then(|| [a, b].map(|side| c.tensor(side)))
}

/// Permutes a factor below its repetitions, where it has fewer elements, and rounds it there.
fn turned<'g>(x: Tensor<'g>, order: &[usize], operands: Scalar) -> Tensor<'g> {
    let c = x.capture();
    let (op, src) = {
        let g = c.graph.borrow();
        (g[x.id].op, g[x.id].src.clone())
    };
    let dims: Vec<Dim> = order.iter().map(|&axis| dims_of(x)[axis]).collect();
    let from = |id: Id| c.tensor(id);
    let below = match op {
        Op::Expand => Some(order.to_vec()),
        Op::Reshape => without_ones(from(src[0]), x, order),
        Op::Gather => behind(from(src[1]).rank(), order),
        _ => None,
    };
    let Some(below) = below else {
        return here(x, order, operands);
    };
    let source = turned(from(src[0]), &below, operands);
    match op {
        Op::Expand => source.expand(&dims),
        Op::Reshape => source.reshape(&dims),
        _ => source.gather(from(src[1])),
    }
}

/// Permutes and rounds a factor that nothing repeats. A packed weight is not rounded: the compiler
/// decides how it is multiplied.
fn here<'g>(x: Tensor<'g>, order: &[usize], operands: Scalar) -> Tensor<'g> {
    let moved = match order.is_sorted() {
        true => x,
        false => x.permute(order),
    };
    match x.is_packed() {
        true => moved,
        false => moved.rounded(operands),
    }
}

/// The order of the axes of `x` below `y`, which has more axes of length 1.
fn without_ones<'g>(x: Tensor<'g>, y: Tensor<'g>, order: &[usize]) -> Option<Vec<usize>> {
    let (below, above) = (x.dims(), y.dims());
    let is_one = |id: Id| x.capture().graph.borrow().int_value(id) == Some(1);
    let (mut source, mut next) = (vec![None; above.len()], 0);
    for (axis, &dim) in above.iter().enumerate() {
        if below.get(next) == Some(&dim) {
            source[axis] = Some(next);
            next += 1;
        } else if !is_one(dim) {
            return None;
        }
    }
    let own = order.iter().filter_map(|&axis| source[axis]).collect();
    (next == below.len()).then_some(own)
}

/// The order of a gather's source, whose first axis those of the index replace, if these stay in
/// front.
fn behind(index: usize, order: &[usize]) -> Option<Vec<usize>> {
    let stay = order[..index].iter().copied().eq(0..index);
    let rest = order[index..].iter().map(|&axis| axis + 1 - index);
    stay.then(|| std::iter::once(0).chain(rest).collect())
}
