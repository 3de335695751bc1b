//! A node on the way back: its sources, its gradient, and the gradients that a rule returns.

use crate::capture::Capture;
use crate::tensor::{Dim, Tensor};
use gristmill_uop::Arg;
use gristmill_uop::dtype::Scalar;

/// Gradient of elements `begin..begin + length` of one axis.
#[derive(Clone, Copy)]
pub(super) struct Window<'g> {
    pub axis: usize,
    pub begin: Dim,
    pub dy: Tensor<'g>,
}

/// Zeros of the dims of `x`, f32.
pub(super) fn zeros(x: Tensor<'_>) -> Tensor<'_> {
    filled(x.capture(), 0.0, &dims_of(x))
}

/// An f32 constant, repeated to `dims`.
pub(super) fn filled<'g>(c: &'g Capture, value: f64, dims: &[Dim]) -> Tensor<'g> {
    c.constant(value, Scalar::F32).expand(dims)
}

/// The dims of a tensor as arguments of movement ops.
pub(super) fn dims_of(x: Tensor<'_>) -> Vec<Dim> {
    x.dims().into_iter().map(Dim::Of).collect()
}

/// One contribution to the gradient of a value.
pub(super) enum Part<'g> {
    /// A gradient of all elements.
    Whole(Tensor<'g>),
    /// The gradient of a window along one axis; other elements get none.
    Window(Window<'g>),
}

/// A node of the forward graph with the gradient of its value.
pub(super) struct Step<'g> {
    /// Value of the node in the forward graph.
    pub y: Tensor<'g>,
    /// Sources of the node, in their order.
    pub src: Vec<Tensor<'g>>,
    pub arg: Arg,
    /// Gradient of the value, f32.
    pub dy: Tensor<'g>,
    /// Type that factors of matrix products are rounded to.
    pub operands: Scalar,
}

impl<'g> Step<'g> {
    /// Source `i` in f32.
    pub fn float(&self, i: usize) -> Tensor<'g> {
        self.src[i].cast(Scalar::F32)
    }
    /// The value in f32.
    pub fn value(&self) -> Tensor<'g> {
        self.y.cast(Scalar::F32)
    }
}
