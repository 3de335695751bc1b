//! Rotary positions: frequencies (YaRN, arXiv 2309.00071) and the table of angles. All in f64: at position 200,000 an
//! angle in f32 is off by 1e-2.

use super::hyper::{Hyper, Scaling};
use std::f64::consts::PI;

/// The frequency of each pair, in radians a position.
pub fn frequencies(h: &Hyper) -> Vec<f64> {
    let plain = |k: usize| h.base.powf(-2.0 * k as f64 / h.rope as f64);
    let pairs = 0..h.rope / 2;
    match h.scaling {
        Scaling::None => pairs.map(plain).collect(),
        Scaling::Linear(factor) => pairs.map(|k| plain(k) / factor).collect(),
        Scaling::Yarn { factor, original, extrapolate, beta_fast, beta_slow } => {
            // The pair that makes `turns` turns over the original context.
            let pair = |turns: f64| h.rope as f64 * (original / (2.0 * PI * turns)).ln() / (2.0 * h.base.ln());
            let low = pair(beta_fast).floor().max(0.0);
            let high = pair(beta_slow).ceil().min(h.rope as f64 - 1.0);
            pairs
                .map(|k| {
                    let ramp = ((k as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    let kept = (1.0 - ramp) * extrapolate;
                    plain(k) / factor * (1.0 - kept) + plain(k) * kept
                })
                .collect()
        }
    }
}

/// Cosine and sine of every angle: `[positions, rope/2, 2]`.
pub fn table(h: &Hyper, positions: usize) -> Vec<f32> {
    let frequencies = frequencies(h);
    let mut table = Vec::with_capacity(positions * h.rope);
    for position in 0..positions {
        for f in &frequencies {
            let (sin, cos) = (position as f64 * f).sin_cos();
            table.extend([cos as f32, sin as f32]);
        }
    }
    table
}
