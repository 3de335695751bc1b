//! A choice among any number of ids: those that stay are told apart by the key of the last of them, and one is drawn in the order
//! of ids.
//!
//! A logit's key is a whole number in the same order. The last that stays has the least key v for which those above v are too few, or not
//! probable enough together; four questions about 255 keys each find it, eight bits at a time.

use super::choose::{Grid, Request, at_least, count, sums_before, sums_up_to};
use gristmill_tensor::dims;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

/// Bits of a key that one question finds.
const BITS: usize = 8;

/// A whole number of the same order as these floats; both zeros are one.
fn key(x: Tensor<'_>) -> Tensor<'_> {
    let zero = x.capture().constant(0.0, Scalar::F32);
    flip(x.equals(0.0).select(zero, x).bitcast(Scalar::I32))
}

/// The float of a key.
fn of_key(key: Tensor<'_>) -> Tensor<'_> {
    flip(key).bitcast(Scalar::F32)
}

/// Bits of a float as a whole number, and back: of negative ones all but the sign change.
fn flip(bits: Tensor<'_>) -> Tensor<'_> {
    let sign = bits >> 31i64;
    bits ^ (sign & i64::from(i32::MAX))
}

/// The last that stays: those of a greater key all stay, of those with its key as many as `ties`, the lower ids first.
#[derive(Clone, Copy)]
struct Last<'g> {
    key: Tensor<'g>,
    ties: Tensor<'g>,
}

/// Keys of a grid, and what is asked about them.
struct Keys<'a, 'g> {
    grid: &'a Grid<'g>,
    key: Tensor<'g>,
}

impl<'g> Keys<'_, 'g> {
    fn float(&self, x: f64) -> Tensor<'g> {
        self.key.capture().constant(x, Scalar::F32)
    }
    /// The least key such that the `mass` of what is above it is below `limit`, which is above 0.
    fn least(&self, mass: Tensor<'g>, limit: Tensor<'g>) -> Tensor<'g> {
        let c = self.key.capture();
        let mut base = c.constant(f64::from(i32::MIN), Scalar::I64);
        let asked = (1 << BITS) - 1;
        for shift in (0..32).step_by(BITS).rev() {
            let width = 1i64 << shift;
            // The last key of each part but the last part.
            let ends = base + (c.iota(dims![asked], 0).cast(Scalar::I64) + 1) * width - 1i64;
            let above = ends.cast(Scalar::I32).unsqueeze(0).unsqueeze(0).lt(self.key.unsqueeze(2));
            let masses = above.select(mass.unsqueeze(2), 0.0).sum(&[1]).sum(&[0]);
            let part = count(at_least(masses, limit)).cast(Scalar::I64);
            base = base + part * width;
        }
        base.cast(Scalar::I32)
    }
    /// The sum of `mass` of those above that key.
    fn above(&self, mass: Tensor<'g>, key: Tensor<'g>) -> Tensor<'g> {
        self.grid.sum(key.lt(self.key).select(mass, 0.0))
    }
}

/// What truncates, besides min-p.
pub(super) enum Cut {
    /// Nothing.
    None,
    /// Top-k.
    First,
    /// Top-p.
    Nucleus,
}

/// The id drawn after truncation.
pub(super) fn wide<'g>(grid: &Grid<'g>, request: &Request<'g>, cut: Cut) -> Tensor<'g> {
    let keys = Keys { grid, key: key(grid.x) };
    let none = keys.float(0.0);
    let below = grid.x - grid.largest;
    let mut stays = grid.inside & at_least(grid.x, grid.largest + request.min_p);
    let last = match cut {
        Cut::None => None,
        Cut::First => {
            let ones = grid.inside.select(keys.float(1.0), none);
            let key = keys.least(ones, request.top_k);
            Some(Last { key, ties: request.top_k - keys.above(ones, key) })
        }
        Cut::Nucleus => {
            let mass = grid.inside.select(below.exp(), none);
            let wanted = request.top_p * grid.sum(mass);
            let key = keys.least(mass, wanted);
            let each = (of_key(key) - grid.largest).exp();
            Some(Last { key, ties: (wanted - keys.above(mass, key)) / each })
        }
    };
    if let Some(last) = last {
        let same = keys.key.equals(last.key) & grid.inside;
        let end = locate(grid, same.select(keys.float(1.0), none), last.ties, at_least);
        stays = stays & (last.key.lt(keys.key) | (same & grid.id.lt(end + 1)));
    }
    let weight = stays.select((below * request.coldness).exp(), none);
    locate(grid, weight, request.random * grid.sum(weight), Tensor::gt)
}

/// Has a sum reached its target?
type Reached<'g> = fn(Tensor<'g>, Tensor<'g>) -> Tensor<'g>;

/// The first id such that the weights up to it, itself included, have reached the target; if there is none, the last with a weight.
fn locate<'g>(grid: &Grid<'g>, weight: Tensor<'g>, target: Tensor<'g>, reached: Reached<'g>) -> Tensor<'g> {
    let (row, before) = place(weight.sum(&[1]), target, reached, grid.rows);
    // Rounding must not let what is left fall below 0, where ids without a weight reach it.
    let rest = (target - before).maximum(0.0);
    let (column, _) = place(grid.row(weight, row), rest, reached, grid.columns);
    row * grid.columns as i64 + column
}

/// The same of a row of weights `[n]`: the place, and the sum of weights before it.
fn place<'g>(weight: Tensor<'g>, target: Tensor<'g>, reached: Reached<'g>, n: usize) -> (Tensor<'g>, Tensor<'g>) {
    let c = weight.capture();
    let none = c.constant(0.0, Scalar::I32);
    let last = weight.gt(0.0).select(c.iota(dims![n], 0), none).max(&[0]);
    let place = (count(reached(sums_up_to(weight, n), target)) * -1i64 + n as i64).minimum(last);
    let before = sums_before(weight, n).gather(place.clamp_index(n - 1).reshape(dims![1])).reshape(dims![]);
    (place, before)
}
