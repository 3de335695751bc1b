//! Rotary position embedding: frequencies (YaRN, arXiv 2309.00071) and tables of angles.
//!
//! Computed in f64: at position 200,000 an angle in f32 is off by 1e-2.

use super::reader::Reader;
use super::{Result, Tensors};
use std::f64::consts::PI;

/// RoPE frequency scaling for long contexts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scaling {
    /// Leaves the frequencies unchanged.
    None,
    /// Divides every frequency by a factor.
    Linear(f64),
    /// YaRN: divides low frequencies, keeps high ones, and interpolates between.
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// Context length before scaling, in tokens.
        original: f64,
        /// Weight of the unscaled frequencies, from 0 to 1.
        extrapolate: f64,
        /// Rotations over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Rotations over the original context below which a frequency is divided.
        beta_slow: f64,
    },
}

impl Scaling {
    /// Reads the keys `rope.scaling.*`.
    ///
    /// # Errors
    /// Returns an error if a value is out of bounds or the type is not supported.
    pub(super) fn read(r: &Reader, context: usize, base: f64) -> Result<Scaling> {
        let factor = match r
            .float("rope.scaling.factor")?
            .or(r.float("rope.scale_linear")?)
        {
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
    /// Returns a description for display.
    pub(super) fn description(&self) -> String {
        match self {
            Scaling::None => "none".into(),
            Scaling::Linear(factor) => format!("linear, factor {factor}"),
            Scaling::Yarn {
                factor, original, ..
            } => format!("YaRN, factor {factor}, from {original} tokens"),
        }
    }
}

/// Returns the frequency of each pair of `dims` rotated dimensions, in radians per position.
pub fn frequencies(dims: usize, base: f64, scaling: Scaling) -> Vec<f64> {
    let plain = |k: usize| base.powf(-2.0 * k as f64 / dims as f64);
    let pairs = 0..dims / 2;
    match scaling {
        Scaling::None => pairs.map(plain).collect(),
        Scaling::Linear(factor) => pairs.map(|k| plain(k) / factor).collect(),
        Scaling::Yarn {
            factor,
            original,
            extrapolate,
            beta_fast,
            beta_slow,
        } => {
            // Index of the pair that makes `turns` rotations over the original context.
            let pair =
                |turns: f64| dims as f64 * (original / (2.0 * PI * turns)).ln() / (2.0 * base.ln());
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

/// Reads the frequency divisors of each pair from a tensor.
///
/// # Errors
/// Returns an error if the tensor is absent, has another type, or has values that are not positive.
pub(super) fn divisors(r: &Reader, tensors: &dyn Tensors, name: &str) -> Result<Vec<f64>> {
    let values = tensors.floats(name)?;
    let good = values.iter().all(|v| v.is_finite() && *v > 0.0);
    r.check(name, "out of bounds", good, "positive numbers")?;
    Ok(values.into_iter().map(f64::from).collect())
}

/// Positions over which [`RopeTable::mean`] is taken. Biases of keys are large where a
/// pair turns little within a training context, of at least this length.
const MEAN_POSITIONS: usize = 4096;

/// RoPE table of cosines and sines; a step reads the rows of its positions.
#[derive(Clone, PartialEq, Debug)]
pub struct RopeTable {
    /// Frequency of each pair, in radians per position.
    pub frequencies: Vec<f64>,
    /// Factor on every cosine and sine.
    pub magnitude: f64,
    /// Position-dependent part of the factor: see [`Temperature`].
    pub temperature: Option<Temperature>,
}

/// Position-dependent scale of queries: `1 + scale·ln(⌊t/original⌋ + 1)` at position `t`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Temperature {
    /// Factor of the logarithm.
    pub scale: f64,
    /// Number of leading positions with a scale of 1.
    pub original: f64,
}

impl RopeTable {
    /// Creates a table without magnitude or position-dependent factor.
    pub fn new(frequencies: Vec<f64>) -> RopeTable {
        RopeTable {
            frequencies,
            magnitude: 1.0,
            temperature: None,
        }
    }
    /// Returns cosine and sine times the factor for `positions` positions: `[positions, pairs, 2]`.
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
    /// Returns the mean of the rows of the first [`MEAN_POSITIONS`] positions: `[1, pairs, 2]`.
    ///
    /// It rotates a vector to the mean of its rotations: nearly itself in pairs of low frequency,
    /// nearly 0 in pairs of high frequency.
    pub fn mean(&self) -> Vec<f32> {
        let n = MEAN_POSITIONS as f64;
        let mean = |f: &f64| match f * n {
            0.0 => [1.0, 0.0],
            angle => [angle.sin() / angle, (1.0 - angle.cos()) / angle],
        };
        let pairs = self.frequencies.iter().flat_map(mean);
        pairs.map(|x| (x * self.magnitude) as f32).collect()
    }
    /// Returns the bytes of one row.
    pub fn row_bytes(&self) -> usize {
        2 * self.frequencies.len() * size_of::<f32>()
    }
    /// Returns the factor on cosines and sines at a position.
    pub fn magnitude_at(&self, position: usize) -> f64 {
        let grown =
            |t: Temperature| 1.0 + t.scale * ((position as f64 / t.original).floor() + 1.0).ln();
        self.magnitude * self.temperature.map_or(1.0, grown)
    }
}
