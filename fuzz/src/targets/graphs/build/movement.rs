//! Draws ops that only move elements: reshapes, permutations, slices, expansions, concatenations.

use super::{Axis, Builder, Elements, ROWS, Value, fixed};
use gristmill_tensor::tensor::Tensor;

impl<'g> Builder<'g, '_> {
    pub(super) fn reshape(&mut self) -> Option<()> {
        let value = self.any();
        let kept = value.axes.iter().take_while(|a| a.varies).count();
        if value.axes[kept..].iter().any(|a| a.varies) {
            return None;
        }
        let total: usize = value.axes[kept..].iter().map(|a| a.size).product();
        let divisors: Vec<usize> = (1..=total.min(16))
            .filter(|d| total.is_multiple_of(*d))
            .collect();
        let divisor = self.bytes.pick(&divisors);
        let mut axes = value.axes[..kept].to_vec();
        match self.bytes.below(3) {
            0 => axes.push(fixed(total)),
            1 => axes.extend([fixed(divisor), fixed(total / divisor)]),
            _ => axes.extend([fixed(total / divisor), fixed(divisor)]),
        }
        let dims = self.dims(&axes);
        self.keep(value.tensor.reshape(&dims), axes, value.elements)
    }
    pub(super) fn permute(&mut self) -> Option<()> {
        let value = self.any();
        let mut order: Vec<usize> = (0..value.axes.len()).collect();
        let turns = self.bytes.below(order.len().max(1));
        order.rotate_left(turns);
        if self.bytes.below(2) == 1 && order.len() > 1 {
            order.swap(0, 1);
        }
        let axes = order.iter().map(|&a| value.axes[a]).collect();
        self.keep(value.tensor.permute(&order), axes, value.elements)
    }
    fn axis(&mut self, value: &Value<'g>) -> Option<usize> {
        (!value.axes.is_empty()).then(|| self.bytes.below(value.axes.len()))
    }
    pub(super) fn slice(&mut self) -> Option<()> {
        let value = self.any();
        let at = self.axis(&value)?;
        let Axis { size, varies } = value.axes[at];
        if varies {
            return None;
        }
        let mut axes = value.axes.clone();
        if size >= ROWS && self.bytes.below(4) == 0 {
            axes[at] = Axis {
                size: ROWS,
                varies: true,
            };
            let n = self.n();
            let begin = self.bytes.below(size - ROWS + 1);
            return self.keep(value.tensor.slice(at, begin, n), axes, value.elements);
        }
        let begin = self.bytes.below(size);
        let length = 1 + self.bytes.below(size - begin);
        axes[at] = fixed(length);
        self.keep(value.tensor.slice(at, begin, length), axes, value.elements)
    }
    pub(super) fn expand(&mut self) -> Option<()> {
        let value = self.any();
        let times = 1 + self.bytes.below(6);
        let mut axes = value.axes.clone();
        match axes.iter().position(|a| *a == fixed(1)) {
            Some(at) => axes[at] = fixed(times),
            None => axes.insert(0, fixed(times)),
        }
        let dims = self.dims(&axes);
        self.keep(value.tensor.expand(&dims), axes, value.elements)
    }
    pub(super) fn cat(&mut self) -> Option<()> {
        let (a, b) = (self.any(), self.any());
        let at = self.axis(&a)?;
        let alike = a.axes.len() == b.axes.len()
            && (0..a.axes.len()).all(|i| i == at || a.axes[i] == b.axes[i]);
        let parts = if alike && a.tensor.scalar() == b.tensor.scalar() {
            [a, b]
        } else {
            [a.clone(), a]
        };
        if parts.iter().any(|p| p.axes[at].varies) {
            return None;
        }
        let elements = match (parts[0].elements, parts[1].elements) {
            (Elements::Float { most: a, error: e }, Elements::Float { most: b, error: f }) => {
                Elements::Float {
                    most: a.max(b),
                    error: e.max(f),
                }
            }
            (Elements::Whole { least: a, most: b }, Elements::Whole { least: c, most: d }) => {
                Elements::Whole {
                    least: a.min(c),
                    most: b.max(d),
                }
            }
            (one, other) => unreachable!("{one:?} beside {other:?} in spite of one scalar"),
        };
        let mut axes = parts[0].axes.clone();
        axes[at] = fixed(parts.iter().map(|p| p.axes[at].size).sum());
        self.keep(Tensor::cat(&parts.map(|p| p.tensor), at), axes, elements)
    }
}
