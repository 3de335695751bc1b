//! A feed-forward: a whole layer's, or one expert's that every token goes through.

use super::step::Step;
use super::weights::Weights;
use gristmill_tensor::nn;
use gristmill_tensor::tensor::Tensor;

/// A feed-forward of three tensors, of `x [n, d]`.
pub(super) fn swiglu<'g>(s: &'g Step, w: &Weights, x: Tensor<'g>, [gate, up, down]: [&str; 3]) -> Tensor<'g> {
    nn::swiglu(x, s.weight(w, gate), s.weight(w, up), s.weight(w, down))
}
