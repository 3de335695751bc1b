//! Operations on lazy tensors, mirroring those of captured tensors.

use super::node::Tensor;
use crate::capture::Dim;
use crate::nn;
use crate::tensor::Tensor as Captured;
use gristmill_uop::Scalar;
use std::ops::Range;

fn lengths(dims: &[usize]) -> Vec<Dim> {
    dims.iter().map(|&d| d.into()).collect()
}

macro_rules! unary { ($($name:ident $doc:literal;)*) => { impl Tensor { $(
    #[doc = $doc]
    pub fn $name(&self) -> Tensor {
        Tensor::from_fn([self], |_, [x]| x.$name())
    }
)* } } }
unary! {
    exp "e^x";
    log "Natural logarithm.";
    sqrt "Square root.";
    recip "1/x";
    sigmoid "1/(1 + e^-x)";
    silu "x/(1 + e^-x)";
    softplus "log(1 + e^x), without overflow.";
}

macro_rules! binary { ($($name:ident $doc:literal;)*) => { impl Tensor { $(
    #[doc = $doc]
    pub fn $name(&self, other: &Tensor) -> Tensor {
        Tensor::from_fn([self, other], |_, [x, y]| x.$name(y))
    }
)* } } }
binary! {
    maximum "The larger, of each pair of elements.";
    minimum "The smaller, of each pair of elements.";
    lt "`self < other`, as bool.";
    gt "`self > other`, as bool.";
    equals "`self == other`, as bool.";
    gather "Rows (first axis) chosen by a tensor of integers: `[i.., rest..]` of `self [rows, rest..]` and `other [i..]`.";
    matmul "`y[b.., m, n] = Σ_k self[b.., m, k]·other[b.., k, n]`, in f32.";
    linear "`y[.., o] = Σ_i other[o, i]·self[.., i]`: `other` is a weight, perhaps packed, of rows that lie together.";
}

impl Tensor {
    /// Converts to another type.
    ///
    /// Floats truncate to integers; narrower floats are rounded to nearest, ties to even.
    pub fn cast(&self, to: Scalar) -> Tensor {
        Tensor::from_fn([self], move |_, [x]| x.cast(to))
    }
    /// Elementwise `self ? a : b`, for a bool tensor.
    pub fn select(&self, a: &Tensor, b: &Tensor) -> Tensor {
        Tensor::from_fn([self, a, b], |_, [c, a, b]| c.select(a, b))
    }
    /// Adds rows of `value [i.., rest..]` at `index [i..]` to rows of this tensor `[rows, rest..]`.
    pub fn scatter_add(&self, value: &Tensor, index: &Tensor) -> Tensor {
        Tensor::from_fn([self, value, index], |_, [x, value, index]| {
            x.scatter_add(value, index)
        })
    }
    /// Views the same elements, in row-major order, with other dims.
    pub fn reshape(&self, dims: &[usize]) -> Tensor {
        let dims = lengths(dims);
        Tensor::from_fn([self], move |_, [x]| x.reshape(&dims))
    }
    /// Reorders the axes: axis `i` of the result is axis `order[i]` of this tensor.
    pub fn permute(&self, order: &[usize]) -> Tensor {
        let order = order.to_vec();
        Tensor::from_fn([self], move |_, [x]| x.permute(&order))
    }
    /// Broadcasts to these dims: leading axes are added, axes of length 1 are repeated.
    pub fn expand(&self, dims: &[usize]) -> Tensor {
        let dims = lengths(dims);
        Tensor::from_fn([self], move |_, [x]| x.expand(&dims))
    }
    /// Inserts an axis of length 1 before `axis`.
    pub fn unsqueeze(&self, axis: usize) -> Tensor {
        Tensor::from_fn([self], move |_, [x]| x.unsqueeze(axis))
    }
    /// Takes a range of one axis.
    ///
    /// # Panics
    /// If the range is empty or exceeds the axis.
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Tensor {
        let length = *self
            .dims()
            .get(axis)
            .unwrap_or_else(|| panic!("axis {axis} of {self:?}"));
        assert!(
            range.start < range.end && range.end <= length,
            "{range:?} of axis {axis} of {self:?}"
        );
        Tensor::from_fn([self], move |_, [x]| {
            x.slice(axis, range.start, range.len())
        })
    }
    /// Concatenates tensors along one axis.
    ///
    /// # Panics
    /// If there are none, or their other dims differ.
    pub fn cat(parts: &[&Tensor], axis: usize) -> Tensor {
        assert!(!parts.is_empty(), "nothing to join");
        Tensor::deferred(parts.iter().map(|&p| p.clone()).collect(), move |_, x| {
            Captured::cat(x, axis)
        })
    }
    /// Sums over axes, which are removed.
    pub fn sum(&self, axes: &[usize]) -> Tensor {
        let axes = axes.to_vec();
        Tensor::from_fn([self], move |_, [x]| x.sum(&axes))
    }
    /// Takes the maximum over axes, which are removed.
    pub fn max(&self, axes: &[usize]) -> Tensor {
        let axes = axes.to_vec();
        Tensor::from_fn([self], move |_, [x]| x.max(&axes))
    }
    /// Softmax over the last axis.
    pub fn softmax(&self) -> Tensor {
        Tensor::from_fn([self], |_, [x]| nn::softmax(x))
    }
}

macro_rules! operators { ($($trait:ident $method:ident $op:tt;)*) => { $(
    impl std::ops::$trait<&Tensor> for &Tensor {
        type Output = Tensor;
        fn $method(self, other: &Tensor) -> Tensor { Tensor::from_fn([self, other], |_, [a, b]| a $op b) }
    }
    impl std::ops::$trait<Tensor> for &Tensor {
        type Output = Tensor;
        fn $method(self, other: Tensor) -> Tensor { self $op &other }
    }
    impl std::ops::$trait<&Tensor> for Tensor {
        type Output = Tensor;
        fn $method(self, other: &Tensor) -> Tensor { &self $op other }
    }
    impl std::ops::$trait<Tensor> for Tensor {
        type Output = Tensor;
        fn $method(self, other: Tensor) -> Tensor { &self $op &other }
    }
    impl std::ops::$trait<f64> for &Tensor {
        type Output = Tensor;
        fn $method(self, other: f64) -> Tensor { Tensor::from_fn([self], move |_, [a]| a $op other) }
    }
    impl std::ops::$trait<f64> for Tensor {
        type Output = Tensor;
        fn $method(self, other: f64) -> Tensor { &self $op other }
    }
)* } }
operators! { Add add +; Sub sub -; Mul mul *; Div div /; }

impl std::ops::Neg for &Tensor {
    type Output = Tensor;
    fn neg(self) -> Tensor {
        Tensor::from_fn([self], |_, [x]| -x)
    }
}

impl std::ops::Neg for Tensor {
    type Output = Tensor;
    fn neg(self) -> Tensor {
        -&self
    }
}
