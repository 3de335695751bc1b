//! Rules of ops that move or sum elements, and the sum of a value's contributions.

use super::product;
use super::step::{Part, Step, Window, dims_of, filled, zeros};
use crate::dims;
use crate::tensor::{Dim, Tensor};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::op::ReduceOp;
use gristmill_uop::{Arg, Id};

impl<'g> Window<'g> {
    /// First element and length, if both are constants.
    fn bounds(&self) -> Option<(i64, i64)> {
        let g = self.dy.capture().graph.borrow();
        let constant = |dim: Dim| match dim {
            Dim::Size(n) => Some(n as i64),
            Dim::Of(id) => g.int_value(id),
        };
        Some((
            constant(self.begin)?,
            g.int_value(self.dy.dims()[self.axis])?,
        ))
    }
    /// The gradient of all elements of `y`, zero outside the window.
    fn padded(self, y: Tensor<'g>) -> Tensor<'g> {
        match row_of_known_windows(y, self.axis, &[self]) {
            Some(whole) => whole,
            None => self.padded_by_index(y.dim(self.axis)),
        }
    }
    /// The same where the begin or a length is known only when a step runs.
    fn padded_by_index(self, length: Dim) -> Tensor<'g> {
        let c = self.dy.capture();
        let order: Vec<usize> = std::iter::once(self.axis)
            .chain((0..self.dy.rank()).filter(|&a| a != self.axis))
            .collect();
        let rows = self.dy.permute(&order);
        let begin = c.tensor(c.id_of(self.begin));
        let own = c.tensor(rows.dims()[0]);
        let at = c.iota(&[length], 0).cast(Scalar::I64) - begin;
        let inside = at.gt(-1) & at.lt(own);
        let mut shape = vec![length];
        shape.resize(rows.rank(), Dim::Size(1));
        let taken = rows.gather(at.maximum(0).minimum(own - 1));
        let padded = inside.reshape(&shape).select(taken, 0.0);
        let mut back = vec![0; order.len()];
        for (to, &from) in order.iter().enumerate() {
            back[from] = to;
        }
        padded.permute(&back)
    }
}

/// Concatenates windows of constant bounds along `axis`, with zeros between them; `None` if bounds
/// are not constant, or windows overlap.
fn row_of_known_windows<'g>(
    y: Tensor<'g>,
    axis: usize,
    windows: &[Window<'g>],
) -> Option<Tensor<'g>> {
    let c = y.capture();
    let length = c.graph.borrow().int_value(y.dims()[axis])?;
    let mut sorted: Vec<((i64, i64), Tensor<'g>)> = Vec::new();
    for w in windows {
        sorted.push((w.bounds()?, w.dy));
    }
    sorted.sort_by_key(|w| w.0);
    let gap = |from: i64, to: i64| {
        let mut dims = dims_of(y);
        dims[axis] = Dim::Size((to - from) as usize);
        filled(c, 0.0, &dims)
    };
    let (mut parts, mut at) = (Vec::new(), 0);
    for ((begin, own), dy) in sorted {
        if begin < at {
            return None;
        }
        if begin > at {
            parts.push(gap(at, begin));
        }
        parts.push(dy);
        at = begin + own;
    }
    if at < length {
        parts.push(gap(at, length));
    }
    Some(Tensor::cat(&parts, axis))
}

/// Sums the contributions to the gradient of `y`.
///
/// Windows that lie side by side become one concatenation instead of a sum of padded tensors.
pub(super) fn total<'g>(y: Tensor<'g>, parts: Vec<Part<'g>>) -> Tensor<'g> {
    let (mut whole, mut windows): (Vec<Tensor<'g>>, Vec<Window<'g>>) = Default::default();
    for part in parts {
        match part {
            Part::Whole(dy) => whole.push(dy),
            Part::Window(w) => windows.push(w),
        }
    }
    for axis in 0..y.rank() {
        let (own, rest): (Vec<_>, Vec<_>) = windows.into_iter().partition(|w| w.axis == axis);
        windows = rest;
        match own.as_slice() {
            [] => {}
            own => match row_of_known_windows(y, axis, own) {
                Some(joined) => whole.push(joined),
                None => whole.extend(own.iter().map(|w| w.padded(y))),
            },
        }
    }
    let sum = whole.into_iter().reduce(|a, b| a + b);
    sum.unwrap_or_else(|| zeros(y))
}

fn one<'g>(dy: Tensor<'g>) -> Vec<(usize, Part<'g>)> {
    vec![(0, Part::Whole(dy))]
}

pub(super) fn copy<'g>(s: &Step<'g>, _: &dyn Fn(usize) -> bool) -> Vec<(usize, Part<'g>)> {
    one(s.dy)
}

pub(super) fn reshape<'g>(s: &Step<'g>, _: &dyn Fn(usize) -> bool) -> Vec<(usize, Part<'g>)> {
    one(s.dy.reshape(&dims_of(s.src[0])))
}

pub(super) fn permute<'g>(s: &Step<'g>, _: &dyn Fn(usize) -> bool) -> Vec<(usize, Part<'g>)> {
    let Arg::Axes(order) = &s.arg else {
        unreachable!("a permute has an order of axes")
    };
    let mut back = vec![0; order.len()];
    for (to, &from) in order.iter().enumerate() {
        back[from as usize] = to;
    }
    one(s.dy.permute(&back))
}

/// Sums over the repeated axes.
pub(super) fn expand<'g>(s: &Step<'g>, _: &dyn Fn(usize) -> bool) -> Vec<(usize, Part<'g>)> {
    let (from, to) = (s.src[0].dims(), s.y.dims());
    let repeated: Vec<usize> = (0..to.len()).filter(|&a| from[a] != to[a]).collect();
    let sum = product::summed(s.dy, &repeated, s.operands);
    one(sum.reshape(&dims_of(s.src[0])))
}

/// A window of one axis stays one; other axes are padded.
pub(super) fn shrink<'g>(s: &Step<'g>, _: &dyn Fn(usize) -> bool) -> Vec<(usize, Part<'g>)> {
    let c = s.y.capture();
    let node: Vec<Id> = c.graph.borrow()[s.y.id].src.iter().copied().collect();
    let (x, dims) = (s.src[0], s.src[0].dims());
    let is_cut = |axis: usize| {
        let begin = c.graph.borrow().int_value(node[1 + 2 * axis]);
        begin != Some(0) || node[2 + 2 * axis] != dims[axis]
    };
    let mut cut: Vec<usize> = (0..x.rank()).filter(|&a| is_cut(a)).collect();
    let Some(last) = cut.pop() else {
        return one(s.dy);
    };
    let window = |axis: usize, dy: Tensor<'g>| Window {
        axis,
        begin: Dim::Of(node[1 + 2 * axis]),
        dy,
    };
    let mut dy = s.dy;
    for axis in cut {
        let mut full = dims_of(dy);
        full[axis] = Dim::Of(dims[axis]);
        let like = filled(c, 0.0, &full);
        dy = window(axis, dy).padded(like);
    }
    vec![(0, Part::Window(window(last, dy)))]
}

pub(super) fn cat<'g>(s: &Step<'g>, needs: &dyn Fn(usize) -> bool) -> Vec<(usize, Part<'g>)> {
    let Arg::Axes(axes) = &s.arg else {
        unreachable!("a concatenation has an axis")
    };
    let (axis, c) = (axes[0] as usize, s.y.capture());
    let mut begin = c.int(0);
    let mut out = Vec::new();
    // The last source is the joined length.
    for (i, part) in s
        .src
        .split_last()
        .map_or(&[][..], |p| p.1)
        .iter()
        .enumerate()
    {
        let length = c.tensor(part.dims()[axis]);
        if needs(i) {
            out.push((i, Part::Whole(s.dy.slice(axis, begin, length))));
        }
        begin = begin + length;
    }
    out
}

/// A sum repeats the gradient; equal maxima share it.
pub(super) fn reduce<'g>(s: &Step<'g>, _: &dyn Fn(usize) -> bool) -> Vec<(usize, Part<'g>)> {
    let Arg::Reduce(op, axes) = &s.arg else {
        unreachable!("a reduction has axes")
    };
    let (x, dims) = (s.src[0], dims_of(s.src[0]));
    let back = |t: Tensor<'g>| {
        let kept = |a: usize| !axes.iter().any(|&r| r as usize == a);
        let shape: Vec<Dim> = (0..dims.len())
            .map(|a| if kept(a) { dims[a] } else { Dim::Size(1) })
            .collect();
        t.reshape(&shape).expand(&dims)
    };
    match op {
        ReduceOp::Add => one(back(s.dy)),
        ReduceOp::Max => {
            let axes: Vec<usize> = axes.iter().map(|&a| a as usize).collect();
            let largest = x.equals(back(s.y));
            let count = largest.cast(Scalar::F32).sum(&axes);
            one(largest.select(back(s.dy * count.recip()), 0.0))
        }
    }
}

/// Rows that were read several times get the sum.
pub(super) fn gather<'g>(s: &Step<'g>, _: &dyn Fn(usize) -> bool) -> Vec<(usize, Part<'g>)> {
    let (x, index) = (s.src[0], s.src[1]);
    let c = s.y.capture();
    match c.inverse(index.id) {
        Some(places) => one(gathered_back(s.dy, x, index, c.tensor(places))),
        None => one(zeros(x).scatter_add(s.dy, index)),
    }
}

/// Sums the rows of `dy` that `index` read from each row of `x`, at known places.
fn gathered_back<'g>(
    dy: Tensor<'g>,
    x: Tensor<'g>,
    index: Tensor<'g>,
    places: Tensor<'g>,
) -> Tensor<'g> {
    let c = x.capture();
    let count = index.dims().iter().fold(c.int(1), |n, &d| n * c.tensor(d));
    let rows: Vec<Dim> = std::iter::once(count.into())
        .chain(dims_of(x).into_iter().skip(1))
        .collect();
    // Places of rows that were not read are arbitrary, or below 0.
    let places = places.maximum(0);
    let own = index.reshape(&[count.into()]).gather(places);
    let is_own = own.equals(c.iota(&dims_of(places), 0));
    let mut beside = dims_of(places);
    beside.resize(x.rank() + 1, Dim::Size(1));
    let taken = dy.reshape(&rows).gather(places);
    is_own.reshape(&beside).select(taken, 0.0).sum(&[1])
}

pub(super) fn scatter_add<'g>(
    s: &Step<'g>,
    needs: &dyn Fn(usize) -> bool,
) -> Vec<(usize, Part<'g>)> {
    let mut out = one(s.dy);
    if needs(1) {
        out.push((1, Part::Whole(s.dy.gather(s.src[2]))));
    }
    out
}

/// Replaced rows pass their gradient to the value instead of the state.
pub(super) fn assign<'g>(s: &Step<'g>, needs: &dyn Fn(usize) -> bool) -> Vec<(usize, Part<'g>)> {
    let (value, start) = (s.src[1], s.src[2]);
    let scattered = start.rank() > 0;
    let mut out = Vec::new();
    if needs(1) {
        let rows = match scattered {
            true => s.dy.gather(start),
            false => s.dy.slice(0, start, value.dim(0)),
        };
        out.push((1, Part::Whole(rows)));
    }
    if needs(0) {
        let c = s.y.capture();
        let rows = s.src[0].dim(0);
        let ones = |n: Dim| filled(c, 1.0, dims![n]);
        let replaced = match scattered {
            true => filled(c, 0.0, dims![rows]).scatter_add(ones(value.dim(0)), start),
            false => Window {
                axis: 0,
                begin: Dim::Of(start.cast(Scalar::I64).id),
                dy: ones(value.dim(0)),
            }
            .padded(filled(c, 0.0, dims![rows])),
        };
        let mut shape = vec![rows];
        shape.resize(s.dy.rank(), Dim::Size(1));
        let kept = replaced.equals(0.0).reshape(&shape);
        out.push((0, Part::Whole(kept.select(s.dy, 0.0))));
    }
    out
}
