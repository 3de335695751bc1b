//! Rules of elementwise ops with several sources.

use super::step::Step;
use crate::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

/// Sums a gradient over the axes that a scalar source was repeated along.
pub(super) fn fit<'g>(gradient: Tensor<'g>, source: Tensor<'g>) -> Tensor<'g> {
    if source.rank() > 0 || gradient.rank() == 0 {
        return gradient;
    }
    let axes: Vec<usize> = (0..gradient.rank()).collect();
    gradient.sum(&axes)
}

pub(super) fn sub<'g>(s: &Step<'g>, i: usize) -> Tensor<'g> {
    if i == 0 { s.dy } else { -s.dy }
}

pub(super) fn mul<'g>(s: &Step<'g>, i: usize) -> Tensor<'g> {
    s.dy * s.float(1 - i)
}

/// `a/b`: `dy/b`, and `-dy·(a/b)/b`.
pub(super) fn div<'g>(s: &Step<'g>, i: usize) -> Tensor<'g> {
    let quotient = s.dy * s.float(1).recip();
    if i == 0 {
        quotient
    } else {
        -(quotient * s.value())
    }
}

/// The gradient goes to the larger source, to the first if they are equal.
pub(super) fn max<'g>(s: &Step<'g>, i: usize) -> Tensor<'g> {
    chosen(s, i, s.src[0].lt(s.src[1]))
}

/// The gradient goes to the smaller source, to the first if they are equal.
pub(super) fn min<'g>(s: &Step<'g>, i: usize) -> Tensor<'g> {
    chosen(s, i, s.src[1].lt(s.src[0]))
}

fn zero<'g>(s: &Step<'g>) -> Tensor<'g> {
    s.dy.capture().constant(0.0, Scalar::F32)
}

/// The gradient of source `i`, where `second` tells whether the second source is the value.
fn chosen<'g>(s: &Step<'g>, i: usize, second: Tensor<'g>) -> Tensor<'g> {
    let none = zero(s);
    if i == 0 {
        second.select(none, s.dy)
    } else {
        second.select(s.dy, none)
    }
}

pub(super) fn select<'g>(s: &Step<'g>, i: usize) -> Tensor<'g> {
    let none = zero(s);
    if i == 1 {
        s.src[0].select(s.dy, none)
    } else {
        s.src[0].select(none, s.dy)
    }
}

/// `a·b + c`
pub(super) fn fma<'g>(s: &Step<'g>, i: usize) -> Tensor<'g> {
    match i {
        2 => s.dy,
        _ => mul(s, i),
    }
}
