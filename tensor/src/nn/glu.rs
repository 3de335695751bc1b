//! Gated linear units: what becomes of a gate and of what it gates.

use crate::tensor::Tensor;

/// A gated linear unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Glu {
    /// `silu(gate) · up`.
    Swiglu,
    /// `gelu(gate) · up`, with GELU's approximation by tanh.
    Geglu,
    /// `g · sigmoid(1.702 g) · (u + 1)` of `g = min(gate, 7)` and `u = up` between -7 and 7: that of gpt-oss.
    ClampedSwiglu,
}

/// Bound of a clamped unit's gate, and of what it gates.
const LIMIT: f64 = 7.0;
/// Factor on a clamped unit's gate within the sigmoid.
const STEEPNESS: f64 = 1.702;

impl Glu {
    /// Of a gate and what it gates, of the same dims.
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

/// `x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`, which is `x · sigmoid` of twice that argument.
pub fn gelu(x: Tensor<'_>) -> Tensor<'_> {
    let argument = (x + x * x * x * 0.044715) * (2.0 * (2.0 / std::f64::consts::PI).sqrt());
    x * argument.sigmoid()
}
