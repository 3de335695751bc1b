//! A sorted table of values, and rounding to its nearest entry.

/// Values that codes stand for, in ascending order, each with its lowest code.
#[derive(Clone, Debug)]
pub(super) struct Levels {
    values: Vec<f32>,
    codes: Vec<u16>,
    /// Midpoints of neighbouring values, one fewer than values.
    bounds: Vec<f32>,
    /// Whether the values are consecutive integers.
    linear: bool,
}

/// Adding and subtracting it rounds an f32 below 2^22 to the nearest integer.
const ROUND: f32 = 12_582_912.0;

/// Numbers that are rounded together.
pub(super) type Lanes = [f32; LANES];
/// Length of [`Lanes`]; groups are multiples of it.
pub(super) const LANES: usize = 8;

impl Levels {
    /// Creates the table; `None` if it is empty.
    pub fn new(mut pairs: Vec<(f32, u16)>) -> Option<Levels> {
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        pairs.dedup_by(|later, first| later.0 == first.0);
        let (values, codes): (Vec<f32>, Vec<u16>) = pairs.into_iter().unzip();
        let follows = |pair: &[f32]| pair[1] - pair[0] == 1.0;
        let linear = values.windows(2).all(follows) && values.first()?.fract() == 0.0;
        let bounds = values
            .windows(2)
            .map(|pair| pair[0] + (pair[1] - pair[0]) / 2.0);
        Some(Levels {
            bounds: bounds.collect(),
            values,
            codes,
            linear,
        })
    }
    /// All values in ascending order.
    pub fn values(&self) -> &[f32] {
        &self.values
    }
    /// Smallest and largest value.
    pub fn ends(&self) -> [f32; 2] {
        [self.values[0], self.values[self.values.len() - 1]]
    }
    /// Largest magnitude of a value.
    pub fn extent(&self) -> f32 {
        self.ends()
            .into_iter()
            .fold(0.0, |most, end| most.max(end.abs()))
    }
    /// Whether the values are consecutive integers.
    pub fn is_linear(&self) -> bool {
        self.linear
    }
    /// Code of entry `index`.
    pub fn code(&self, index: usize) -> u16 {
        self.codes[index]
    }
    /// Index of the entry nearest to `v`.
    pub fn nearest(&self, v: f64) -> usize {
        self.bounds.partition_point(|&bound| f64::from(bound) < v)
    }
    /// Index of an entry.
    pub fn index_of(&self, value: f32) -> usize {
        match self.linear {
            true => (value - self.values[0]) as usize,
            false => self.values.partition_point(|&v| v < value),
        }
    }
    /// Nearest value of each number.
    #[inline(always)]
    pub fn round(&self, numbers: Lanes) -> Lanes {
        let [low, high] = self.ends();
        if self.linear {
            return numbers.map(|v| {
                let v = if v > low { v } else { low };
                let v = if v < high { v } else { high };
                v + ROUND - ROUND
            });
        }
        let mut out = [low; LANES];
        for (&bound, &value) in self.bounds.iter().zip(&self.values[1..]) {
            for (out, v) in out.iter_mut().zip(numbers) {
                *out = if v > bound { value } else { *out };
            }
        }
        out
    }
}
