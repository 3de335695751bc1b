//! Gradients of drawn functions.

use super::{Builder, Elements, ROUNDING};
use crate::targets::graphs::harness::{Case, rounding_error};
use gristmill_tensor::grad::pullback;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::Scalar;

/// Inputs of a function with compared gradients.
const INPUTS: usize = 3;
/// Draws of errors, to measure their effect.
const TRIES: u64 = 4;
/// Bound on an error of f32 arithmetic in multiples of the largest measured one: sums of up to a
/// thousand terms round more often than once.
const MARGIN: f64 = 64.0;

impl Builder<'_, '_> {
    /// Bound on the error of all outputs of a case.
    pub(super) fn gradient_error(case: &Case) -> f64 {
        MARGIN * rounding_error(case, ROUNDING, TRIES)
    }
    /// Whether a choice by such values, or their rounding to fewer bits, has gradients that jump
    /// within their error. Functions with gradients make none.
    pub(super) fn jumps(&self, elements: Elements) -> bool {
        self.gradients && matches!(elements, Elements::Float { error, .. } if error > 0.0)
    }
    /// Outputs the gradients of a weighted sum of one value, with respect to inputs.
    pub(super) fn gradients_of_sum(&mut self) {
        let is_float = |at: &usize| matches!(self.values[*at].elements, Elements::Float { .. });
        let floats: Vec<usize> = (0..self.values.len()).filter(is_float).collect();
        let back = self.bytes.below(floats.len().min(3));
        let value = self.values[floats[floats.len() - 1 - back]].clone();
        let dims = self.dims(&value.axes);
        let seed = self.capture.input("seed", &dims, Scalar::F32);
        let of: Vec<Tensor> = self.inputs.iter().rev().take(INPUTS).copied().collect();
        for gradient in pullback(&[(value.tensor, seed)], &of, Scalar::F32) {
            self.capture.output("dx", gradient);
        }
    }
}
