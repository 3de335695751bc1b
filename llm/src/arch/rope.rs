//! Rotary positions: frequencies (YaRN, arXiv 2309.00071) and the tables of angles. All in f64: at position 200,000 an
//! angle in f32 is off by 1e-2.

use super::reader::Reader;
use super::{Result, Tensors};
use std::f64::consts::PI;

/// Change of the rope's frequencies for long contexts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scaling {
    /// None.
    None,
    /// Every frequency divided by a factor.
    Linear(f64),
    /// Low frequencies divided, high ones kept, a ramp between.
    Yarn {
        /// The factor.
        factor: f64,
        /// Context before scaling, in tokens.
        original: f64,
        /// Share of the kept frequencies.
        extrapolate: f64,
        /// Turns over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Turns below which it is divided.
        beta_slow: f64,
    },
}

impl Scaling {
    /// What the keys `rope.scaling.*` say.
    ///
    /// # Errors
    /// When they are out of bounds, or of another kind.
    pub(super) fn read(r: &Reader, context: usize, base: f64) -> Result<Scaling> {
        let factor = match r.float("rope.scaling.factor")?.or(r.float("rope.scale_linear")?) {
            None | Some(0.0) => 1.0,
            Some(f) => f,
        };
        r.check("rope.scaling.factor", factor, factor > 0.0, "positive")?;
        Ok(match r.str("rope.scaling.type")?.unwrap_or("linear") {
            "none" => Scaling::None,
            "linear" | "yarn" if factor == 1.0 => Scaling::None,
            "linear" => Scaling::Linear(factor),
            "yarn" => {
                r.check("rope.freq_base", base, base > 1.0, "above 1")?;
                Scaling::Yarn {
                    factor,
                    original: match r.size_or("rope.scaling.original_context_length", Some(0))? {
                        0 => context as f64,
                        n => n as f64,
                    },
                    extrapolate: r.float("rope.scaling.yarn_ext_factor")?.unwrap_or(1.0),
                    beta_fast: r.positive("rope.scaling.yarn_beta_fast", 32.0)?,
                    beta_slow: r.positive("rope.scaling.yarn_beta_slow", 1.0)?,
                }
            }
            other => return r.unsupported("rope.scaling.type", other),
        })
    }
    /// In words, for people.
    pub(super) fn words(&self) -> String {
        match self {
            Scaling::None => "none".into(),
            Scaling::Linear(factor) => format!("linear, factor {factor}"),
            Scaling::Yarn { factor, original, .. } => format!("YaRN, factor {factor}, from {original} tokens"),
        }
    }
}

/// The frequency of each pair of `dims` rotated dimensions, in radians a position.
pub fn frequencies(dims: usize, base: f64, scaling: Scaling) -> Vec<f64> {
    let plain = |k: usize| base.powf(-2.0 * k as f64 / dims as f64);
    let pairs = 0..dims / 2;
    match scaling {
        Scaling::None => pairs.map(plain).collect(),
        Scaling::Linear(factor) => pairs.map(|k| plain(k) / factor).collect(),
        Scaling::Yarn { factor, original, extrapolate, beta_fast, beta_slow } => {
            // The pair that makes `turns` turns over the original context.
            let pair = |turns: f64| dims as f64 * (original / (2.0 * PI * turns)).ln() / (2.0 * base.ln());
            let low = pair(beta_fast).floor().max(0.0);
            let high = pair(beta_slow).ceil().min(dims as f64 - 1.0);
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

/// What the frequencies of each pair are divided by: the numbers of that tensor.
///
/// # Errors
/// When it is absent, of another type, or has numbers that are not positive.
pub(super) fn divisors(r: &Reader, tensors: &dyn Tensors, name: &str) -> Result<Vec<f64>> {
    let values = tensors.floats(name)?;
    let good = values.iter().all(|v| v.is_finite() && *v > 0.0);
    r.check(name, "out of bounds", good, "positive numbers")?;
    Ok(values.into_iter().map(f64::from).collect())
}

/// A table of rotations: a step reads the rows of its positions.
#[derive(Clone, PartialEq, Debug)]
pub struct RopeTable {
    /// The frequency of each pair, in radians a position.
    pub frequencies: Vec<f64>,
    /// Factor on every cosine and sine.
    pub magnitude: f64,
    /// Growth of the factor with the position: see [`Temperature`].
    pub temperature: Option<Temperature>,
}

/// Attention that sharpens with the position: queries at position `t` count `1 + scale·ln(⌊t/original⌋ + 1)` times.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Temperature {
    /// The factor on the logarithm.
    pub scale: f64,
    /// Positions that count once.
    pub original: f64,
}

impl RopeTable {
    /// Of these frequencies, as they are.
    pub fn new(frequencies: Vec<f64>) -> RopeTable {
        RopeTable { frequencies, magnitude: 1.0, temperature: None }
    }
    /// Cosine and sine of every angle at these many positions, times the factor: `[positions, pairs, 2]`.
    pub fn rows(&self, positions: usize) -> Vec<f32> {
        let mut table = Vec::with_capacity(positions * 2 * self.frequencies.len());
        for position in 0..positions {
            let magnitude = self.magnitude_at(position);
            for f in &self.frequencies {
                let (sin, cos) = (position as f64 * f).sin_cos();
                table.extend([(cos * magnitude) as f32, (sin * magnitude) as f32]);
            }
        }
        table
    }
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        2 * self.frequencies.len() * size_of::<f32>()
    }
    /// The factor at a position.
    pub fn magnitude_at(&self, position: usize) -> f64 {
        let grown = |t: Temperature| 1.0 + t.scale * ((position as f64 / t.original).floor() + 1.0).ln();
        self.magnitude * self.temperature.map_or(1.0, grown)
    }
}
