//! The numbers of a group of a block, and how much the error of each counts.

use super::levels::Lanes;

/// Numbers of a group and the weight of each one's squared error, in whole [`Lanes`].
#[derive(Clone, Copy)]
pub(super) struct Weighted<'x> {
    pub x: &'x [f32],
    pub weights: &'x [f32],
    /// Whether all weights are 1.
    pub is_uniform: bool,
}

impl<'x> Weighted<'x> {
    /// Whole chunks of numbers, each with its weights.
    pub fn lanes(self) -> impl Iterator<Item = (&'x Lanes, &'x Lanes)> {
        self.x.as_chunks().0.iter().zip(self.weights.as_chunks().0)
    }
}
