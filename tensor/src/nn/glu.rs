//! Gated linear units.

use crate::tensor::Tensor;

/// Activation of a gated linear unit, as a function of gate and up projection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Glu {
    /// `silu(gate) · up`, with `silu(x) = x · sigmoid(x)`.
    Swiglu,
    /// `gelu(gate) · up`, with the tanh approximation of GELU.
    Geglu,
    /// `gelu(gate) · up`, with GELU by its definition.
    GegluErf,
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
            Glu::GegluErf => gelu_erf(gate) * up,
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

/// Coefficients of the polynomial of [`gelu_erf`], from the highest power down: Abramowitz and
/// Stegun, 7.1.26, with an error of at most 1.5e-7.
const ERF: [f64; 5] = [
    1.061_405_429,
    -1.453_152_027,
    1.421_413_741,
    -0.284_496_736,
    0.254_829_592,
];
/// Factor of the argument in the polynomial's variable.
const ERF_FACTOR: f64 = 0.327_591_1;

/// Computes `x/2 · (1 + erf(x/√2))`.
pub fn gelu_erf(x: Tensor<'_>) -> Tensor<'_> {
    let z = x.maximum(x * -1.0) * std::f64::consts::FRAC_1_SQRT_2;
    let t = (z * ERF_FACTOR + 1.0).recip();
    let [highest, rest @ ..] = ERF;
    let sum = rest
        .iter()
        .fold(t * highest, |sum, &factor| (sum + factor) * t);
    // Half of 1 − erf(z): the share of x below 0, and what the share above lacks.
    let tail = sum * (z * z * -1.0).exp() * 0.5;
    x * x.lt(0.0).select(tail, tail * -1.0 + 1.0)
}
