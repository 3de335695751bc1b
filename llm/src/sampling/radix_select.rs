//! Sampling from any number of ids: radix select finds the key of the last id that remains, then an
//! id is drawn in ascending order of ids.
//!
//! A logit's key is an integer with the same order. The threshold is the least key v such that the
//! ids above v are too few, or not probable enough in total. Four passes find it, eight bits at a
//! time, with 255 comparisons each.

use super::grid::{Grid, RequestParams, at_least, count, exclusive_sums, inclusive_sums, plain};
use super::weight::{probability_share_of, target_of, weight_of};
use gristmill_tensor::dims;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

/// Bits of the key found per pass.
const RADIX_BITS: usize = 8;

/// Returns integers with the same order as the floats; −0 and 0 are equal.
fn key(x: Tensor<'_>) -> Tensor<'_> {
    let zero = x.capture().constant(0.0, Scalar::F32);
    flip(x.equals(0.0).select(zero, x).bitcast(Scalar::I32))
}

/// Flips all bits of negative floats except the sign, so that they order as integers.
fn flip(bits: Tensor<'_>) -> Tensor<'_> {
    let sign = bits >> 31i64;
    bits ^ (sign & i64::from(i32::MAX))
}

/// The truncation threshold. All greater keys remain; of equal keys, the lowest ids with a
/// total mass of `rest`.
#[derive(Clone, Copy)]
struct Threshold<'g> {
    key: Tensor<'g>,
    mass: Tensor<'g>,
    rest: Tensor<'g>,
}

/// The grid and the keys of its logits.
struct Keys<'a, 'g> {
    grid: &'a Grid<'g>,
    key: Tensor<'g>,
}

impl<'g> Keys<'_, 'g> {
    /// Returns the least key such that the `mass` above it is below `limit`,
    /// which must be positive.
    fn least_key(&self, mass: Tensor<'g>, limit: Tensor<'g>) -> Tensor<'g> {
        let c = self.key.capture();
        let mut base = c.constant(f64::from(i32::MIN), Scalar::I64);
        let asked = (1 << RADIX_BITS) - 1;
        for shift in (0..32).step_by(RADIX_BITS).rev() {
            let width = 1i64 << shift;
            // The last key of each part except the last part.
            let ends = base + (c.iota(dims![asked], 0).cast(Scalar::I64) + 1) * width - 1i64;
            let above = ends
                .cast(Scalar::I32)
                .unsqueeze(0)
                .unsqueeze(0)
                .lt(self.key.unsqueeze(2));
            let masses = above.select(mass.unsqueeze(2), 0i64).sum(&[1]).sum(&[0]);
            let part = count(at_least(masses, limit)).cast(Scalar::I64);
            base = base + part * width;
        }
        base.cast(Scalar::I32)
    }
    /// Returns the threshold that keeps a mass of `wanted`.
    fn threshold(&self, mass: Tensor<'g>, wanted: Tensor<'g>) -> Threshold<'g> {
        let key = self.least_key(mass, wanted);
        let above = self.grid.sum(key.lt(self.key).select(mass, 0i64));
        Threshold {
            key,
            mass,
            rest: wanted - above,
        }
    }
}

/// Truncation in addition to min-p.
pub(super) enum Truncation {
    /// Only min-p truncates the ids.
    None,
    /// The `top_k` largest logits.
    TopK,
    /// The fewest ids with probability `top_p`.
    TopP,
}

/// Returns the id drawn after truncation.
pub(super) fn radix_select<'g>(
    grid: &Grid<'g>,
    request: &RequestParams<'g>,
    cut: Truncation,
) -> Tensor<'g> {
    let keys = Keys {
        grid,
        key: key(grid.x),
    };
    let (below, c) = (grid.below(), grid.x.capture());
    let (none, inside) = (c.constant(0.0, Scalar::I64), grid.inside);
    let mut stays = grid.inside & at_least(grid.x, grid.largest + request.min_p);
    let last = match cut {
        Truncation::None => None,
        Truncation::TopK => {
            Some(keys.threshold(inside.cast(Scalar::I32), request.top_k.cast(Scalar::I32)))
        }
        Truncation::TopP => {
            let mass = inside.select(weight_of(below, plain(below)), none);
            Some(keys.threshold(mass, probability_share_of(grid.sum(mass), request.top_p)))
        }
    };
    if let Some(last) = last {
        let same = keys.key.equals(last.key) & grid.inside;
        let end = locate(grid, same.select(last.mass, 0i64), last.rest, at_least);
        stays = stays & (last.key.lt(keys.key) | (same & grid.id.lt(end + 1)));
    }
    let weight = stays.select(weight_of(below, request.scale), none);
    locate(
        grid,
        weight,
        target_of(grid.sum(weight), request.random),
        Tensor::gt,
    )
}

/// Compares a sum with its target.
type Reached<'g> = fn(Tensor<'g>, Tensor<'g>) -> Tensor<'g>;

/// Returns the first id at which the inclusive prefix sum of weights reaches the target, or the
/// last if there is none.
fn locate<'g>(
    grid: &Grid<'g>,
    weight: Tensor<'g>,
    target: Tensor<'g>,
    reached: Reached<'g>,
) -> Tensor<'g> {
    let (row, before) = position(weight.sum(&[1]), target, reached, grid.rows);
    let (column, _) = position(
        grid.row(weight, row),
        target - before,
        reached,
        grid.columns,
    );
    row * grid.columns as i64 + column
}

/// Returns the same index for weights `[n]`, and the sum of the weights before it.
fn position<'g>(
    weight: Tensor<'g>,
    target: Tensor<'g>,
    reached: Reached<'g>,
    n: usize,
) -> (Tensor<'g>, Tensor<'g>) {
    let place = count(reached(inclusive_sums(weight, n), target)) * -1i64 + n as i64;
    let before = exclusive_sums(weight, n)
        .gather(place.clamp_index(n - 1).reshape(dims![1]))
        .reshape(dims![]);
    (place, before)
}
