//! The numbers of a block apart from its codes.

use super::fit::Line;
use super::layout::{Factor, Layout};

/// The f16s of a block and an index into the levels of each field.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Choice {
    /// The f16 of the scale and that of the offset; 1 or 0 without one.
    pub halves: [f32; 2],
    /// Indices for the scale: one for each group, or 0 without fields.
    pub scales: Vec<usize>,
    /// Indices for the offset: one for each group, or 0 without fields.
    pub offsets: Vec<usize>,
}

impl Choice {
    pub fn new(halves: [f32; 2], scales: Vec<usize>, offsets: Vec<usize>) -> Choice {
        Choice {
            halves,
            scales,
            offsets,
        }
    }
    /// Line of a group, in multiples of `unit`.
    pub fn line(&self, layout: &Layout, group: usize, unit: f64) -> Line {
        let of = |all: &[usize]| all.get(group).copied().unwrap_or(0);
        let fields = [of(&self.scales), of(&self.offsets)];
        line(layout, self.halves, group, fields, unit)
    }
}

/// Line of a group with these f16s and fields, in multiples of `unit`.
pub(super) fn line(
    layout: &Layout,
    halves: [f32; 2],
    group: usize,
    fields: [usize; 2],
    unit: f64,
) -> Line {
    let value = |factor: &Factor, side: usize| {
        let field = factor.fields.get(group);
        let field = field.map_or(1.0, |field| field.levels.values()[fields[side]]);
        f64::from(factor.sign * halves[side] * field) / unit
    };
    Line {
        scale: value(&layout.scale, 0),
        offset: layout
            .offset
            .as_ref()
            .map_or(0.0, |factor| value(factor, 1)),
    }
}
