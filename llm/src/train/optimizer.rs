//! AdamW over flat buffers: all parameters, their gradients and moments are one array each.
//!
//! Step `t`, with the gradient `g` scaled by `min(1, clip / (‖g‖ + 1e-6))`:
//!
//! ```text
//! p ← p·(1 − lr·decay)
//! m ← 0.9 m + 0.1 g,  v ← 0.999 v + 0.001 g²
//! p ← p − lr·(m / (1 − 0.9ᵗ)) / (√(v / (1 − 0.999ᵗ)) + 1e-8)
//! ```
//!
//! (Loshchilov and Hutter, arXiv 1711.05101; the norm as in PyTorch's `clip_grad_norm_`.)

use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;

const FIRST_DECAY: f64 = 0.9;
const SECOND_DECAY: f64 = 0.999;
const EPSILON: f64 = 1e-8;
const NORM_EPSILON: f64 = 1e-6;

/// Numbers that an update reads, in this order: see [`UpdateScalars::values`].
pub(super) const SCALARS: usize = 5;

/// Numbers of one update of one range of parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateScalars {
    pub rate: f64,
    pub weight_decay: f64,
    /// Largest norm of the gradients, and their norm.
    pub clip: f64,
    pub norm: f64,
    /// Number of the step, from 1.
    pub step: u64,
}

impl UpdateScalars {
    /// Learning rate, kept part of a parameter, corrections of the moments, factor of gradients.
    pub fn values(self) -> [f32; SCALARS] {
        let correction = |decay: f64| 1.0 / (1.0 - decay.powf(self.step as f64));
        [
            self.rate,
            1.0 - self.rate * self.weight_decay,
            correction(FIRST_DECAY),
            correction(SECOND_DECAY),
            (self.clip / (self.norm + NORM_EPSILON)).min(1.0),
        ]
        .map(|x| x as f32)
    }
}

/// Gradients whose squares the device sums; the host adds the sums in f64. In f32 a sum of millions
/// of squares loses those that are small beside it.
pub(super) const SQUARES: usize = 4096;

/// The function of the sums of squares of `n` gradients, a multiple of [`SQUARES`]. Slots:
/// gradients `[n]`, sums `[n / SQUARES]`.
pub(super) fn squares(n: usize) -> Function {
    let c = Capture::new("gradient_squares");
    let g = c.input("gradients", dims![n / SQUARES, SQUARES], Scalar::F32);
    c.output("squares", (g * g).sum(&[1]));
    c.finish()
}

/// The function that updates `n` parameters and clears their gradients. Slots: parameters,
/// gradients, first and second moments, all `[n]`; [`SCALARS`].
pub(super) fn update(n: usize) -> Function {
    let c = Capture::new("adamw");
    let [p, g, m, v] = ["parameters", "gradients", "first_moments", "second_moments"]
        .map(|name| c.state(name, dims![n], Scalar::F32));
    let scalars = c.input("scalars", dims![SCALARS], Scalar::F32);
    let scalar = |i: usize| scalars.slice(0, i, 1);
    let [rate, kept, of_first, of_second, factor] = [0, 1, 2, 3, 4].map(scalar);
    let clipped = g * factor;
    let first = m * FIRST_DECAY + clipped * (1.0 - FIRST_DECAY);
    let second = v * SECOND_DECAY + clipped * clipped * (1.0 - SECOND_DECAY);
    let step = rate * (first * of_first) / ((second * of_second).sqrt() + EPSILON);
    let none = c.constant(0.0, Scalar::F32).expand(dims![n]);
    for (state, value) in [(p, p * kept - step), (g, none), (m, first), (v, second)] {
        c.output_state(state.assign(value, c.int(0)));
    }
    c.finish()
}
