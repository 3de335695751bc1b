//! Gated linear units.

use crate::tensor::Tensor;

/// Activation of a gated linear unit, as a function of gate and up projection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Glu {
    /// `silu(gate) · up`, with `silu(x) = x · sigmoid(x)`.
    Swiglu,
    /// `gelu(gate) · up`, with the tanh approximation of GELU.
    Geglu,
    /// `g · sigmoid(1.702 g) · (u + 1)`, the unit of gpt-oss.
    ///
    /// Here `g = min(gate, 7)` and `u` is `up` clamped to `-7..=7`.
    ClampedSwiglu,
}

/// Upper bound of the clamped unit's gate, and bound of the magnitude of its up projection.
const LIMIT: f64 = 7.0;
/// Factor on the clamped unit's gate inside the sigmoid.
const STEEPNESS: f64 = 1.702;

impl Glu {
    /// Applies the unit to a gate and an up projection of the same dims.
    pub fn apply<'g>(self, gate: Tensor<'g>, up: Tensor<'g>) -> Tensor<'g> {
        match self {
            Glu::Swiglu => gate.silu() * up,
            Glu::Geglu => gelu(gate) * up,
            Glu::ClampedSwiglu => {
                let (g, u) = (gate.minimum(LIMIT), up.maximum(-LIMIT).minimum(LIMIT));
                g * (g * STEEPNESS).sigmoid() * (u + 1.0)
            }
        }
    }
}

/// Computes `x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`, as `x · sigmoid` of twice that argument.
pub fn gelu(x: Tensor<'_>) -> Tensor<'_> {
    let argument = (x + x * x * x * 0.044715) * (2.0 * (2.0 / std::f64::consts::PI).sqrt());
    x * argument.sigmoid()
}
